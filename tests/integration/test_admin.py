"""The admin port of a running gateway: who may use it, what it tells, and what it changes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.scripts import sends, streams
from tests.integration.toolkit import CHAT, DONE, STREAM, Client, Conn, admin, ask, ev, eventually, http, samples

if TYPE_CHECKING:
    from gateway.app import Gateway
    from tests.integration.toolkit import Reply

    Start = Any

READS = ["/", "/docs", "/openapi.json", "/admin/replicas", "/admin/decisions", "/admin/explain/x", "/admin/config"]
WRITES = [
    ("POST", "/admin/replicas", {"model": "m", "url": "http://127.0.0.1:9"}),
    ("POST", "/admin/replicas/r1/drain", {}),
    ("POST", "/admin/replicas/r1/undrain", {}),
    ("POST", "/admin/reload", {}),
    ("DELETE", "/admin/replicas/r1", None),
]
TOKEN = "t-0123456789"


def basic(password: str) -> str:
    return f"authorization: Basic {base64.b64encode(f'anyone:{password}'.encode()).decode()}\r\n"


async def raw(gateway: Gateway, line: str, headers: str, body: bytes = b"{}") -> Reply:
    async with Client(gateway.ports[1]) as client:
        await client.send(f"{line} HTTP/1.1\r\n{headers}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode("latin-1") + body)
        return await client.reply()


# -- who may -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READS)
async def test_a_token_guards_every_read_but_metrics(replica: Start, gateway: Start, path: str) -> None:
    """401 without it, asking a browser for it; the pages with documentation included."""
    running = await gateway(await replica(), server={"admin": {"port": 0, "token": TOKEN}})
    good = 404 if "explain" in path else 200
    for headers, status in (
        ("", 401),
        ("authorization: Bearer nope\r\n", 401),
        (f"authorization: {TOKEN}\r\n", 401),
        (f"authorization: Bearer {TOKEN}x\r\n", 401),
        ("authorization: Bearer t\xe9\r\n", 401),
        ("authorization: Basic !!!\r\n", 401),
        (basic("nope"), 401),
        (f"authorization: Bearer {TOKEN}\r\n", good),
        (f"authorization: bearer {TOKEN}\r\n", good),
        (basic(TOKEN), good),
    ):
        reply = await admin(running, path, headers=headers)
        assert reply.status == status, headers
        assert status != 401 or reply.headers["www-authenticate"].startswith("Basic ")
    assert (await admin(running, "/metrics")).status == 200


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_a_token_guards_every_write(replica: Start, gateway: Start, method: str, path: str, body: Any) -> None:
    """Without it nothing changes; with it, from any host and, unless a browser sends it, in any content type."""
    running = await gateway(await replica(), server={"admin": {"port": 0, "token": TOKEN}})
    assert (await admin(running, path, method, body)).status == 401
    assert [row.draining for row in running.table.snapshot(running.now())] == [False]
    form = "content-type: text/plain\r\n"
    assert (await raw(running, f"{method} {path}", f"host: x\r\n{form}{basic(TOKEN)}")).status == 415
    data = b'{"model":"m","url":"http://127.0.0.1:9"}' if path == "/admin/replicas" else b"{}"
    bearer = f"host: kvgate.example\r\ncontent-type: application/json\r\nauthorization: Bearer {TOKEN}\r\n"
    assert (await raw(running, f"{method} {path}", bearer, data)).status in (200, 201, 202)


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("host: evil.example\r\ncontent-type: application/json\r\n", 403),
        ("host: evil.example:9090\r\ncontent-type: application/json\r\n", 403),
        ("host: 127.0.0.1.evil.example\r\ncontent-type: application/json\r\n", 403),
        ("host: 10.0.0.1\r\ncontent-type: application/json\r\n", 403),
        ("host: [::\r\ncontent-type: application/json\r\n", 403),
        ("host: localhost\r\ncontent-type: text/plain\r\n", 415),
        ("host: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n", 415),
        ("host: localhost\r\ncontent-type: text/plain; application/json\r\n", 415),
        ("host: localhost\r\n", 415),
    ],
)
async def test_without_a_token_no_web_page_can_change_anything(
    replica: Start, gateway: Start, method: str, path: str, body: Any, headers: str, status: int
) -> None:
    """What a browser can be made to send is refused: foreign hosts, forms, anything that needs no preflight."""
    running = await gateway(await replica())
    assert (await raw(running, f"{method} {path}", headers)).status == status
    [row] = running.table.snapshot(running.now())
    assert (row.id, row.draining) == ("r1", False)


@pytest.mark.parametrize("host", ["localhost", "localhost:9090", "127.0.0.1", "127.0.0.1:1234", "[::1]", "[::1]:9090", "LOCALHOST"])
async def test_without_a_token_this_machine_may_change_things(replica: Start, gateway: Start, host: str) -> None:
    """By any of its names, and with a charset behind the content type."""
    running = await gateway(await replica())
    headers = f"host: {host}\r\ncontent-type: application/json; charset=utf-8\r\n"
    assert (await raw(running, "POST /admin/replicas/r1/drain", headers)).status == 200


async def test_nothing_of_the_admin_port_is_on_the_public_one(replica: Start, gateway: Start) -> None:
    """And no page of another site may read answers: there are no cross-origin headers."""
    running = await gateway(await replica())
    for path in (*READS[1:], "/metrics"):
        assert (await ask(running, path=path)).status == 404
    assert not any(name.startswith("access-control") for name in (await admin(running, "/admin/config", headers="origin: x\r\n")).headers)


# -- metrics -------------------------------------------------------------------------------------------------------------

METRICS = [
    "kvgate_build_info",
    "kvgate_requests_total",
    "kvgate_attempts_total",
    "kvgate_request_ttft_seconds_count",
    "kvgate_request_tpot_seconds_count",
    "kvgate_request_duration_seconds_count",
    "kvgate_overhead_seconds_count",
    "kvgate_queue_seconds_count",
    "kvgate_prompt_tokens_total",
    "kvgate_cached_tokens_total",
    "kvgate_completion_tokens_total",
    "kvgate_replica_inflight_requests",
    "kvgate_replica_state",
    "kvgate_replica_score",
    "kvgate_replica_signal_age_seconds",
    "kvgate_prefix_predicted_tokens_total",
    "kvgate_prefix_actual_tokens_total",
    "kvgate_prefix_index_blocks",
    "kvgate_loop_lag_seconds_count",
]


@pytest.mark.parametrize(
    ("accept", "kind", "parse"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", text_string_to_metric_families),
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8", text_string_to_metric_families),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics_families),
    ],
)
async def test_metrics_are_complete_and_readable(replica: Start, gateway: Start, accept: str, kind: str, parse: Any) -> None:
    """After some traffic every promised metric is there, in both formats, each series once."""
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}
    script = streams(ev("a"), ev("b"), ev("", choices=[], usage=usage), DONE)
    running = await gateway(await replica(script), scrape={"interval_s": 0.1})
    for body in (STREAM, b"{", STREAM):
        await ask(running, body)
    await eventually(lambda: samples(running, "kvgate_replica_signal_age_seconds"))
    reply = await admin(running, "/metrics", headers=f"accept: {accept}\r\n")
    assert (reply.status, reply.headers["content-type"]) == (200, kind)
    found = [(s.name, tuple(sorted(s.labels.items()))) for family in parse(reply.body.decode()) for s in family.samples]
    assert len(found) == len(set(found))
    assert set(METRICS) - {name for name, _ in found} == set()


# -- replicas ------------------------------------------------------------------------------------------------------------


async def test_replicas_are_told_with_what_is_known_of_them(replica: Start, gateway: Start) -> None:
    """State, engine, load, signals with their age, the terms of the last score, and why one cannot serve."""
    running = await gateway(await replica(), await replica(health=503), scrape={"interval_s": 0.1})
    await ask(running)
    await eventually(lambda: running.table.snapshot(running.now())[0].signals["running"].value is not None)
    told = (await admin(running, "/admin/replicas")).json()
    assert told["policy"] == "weighted"
    one, two = told["replicas"]
    assert (one["id"], one["model"], one["engine"], one["version"], one["state"], one["origin"]) == (
        "r1",
        "m",
        "vllm",
        "0.32.0",
        "up",
        "config",
    )
    assert one["signals"]["running"]["value"] == 0 and one["signals"]["running"]["age_s"] >= 0
    assert set(one["last_score"]) >= {"gpu", "kv", "prefix", "queue", "total"}
    assert one["prefix_index_blocks"] >= 0
    assert (two["id"], two["health"], two["health_detail"]) == ("r2", "down", "/health answers 503") and two["reason"]


async def test_a_replica_can_be_added_drained_and_removed(replica: Start, gateway: Start) -> None:
    """Over HTTP: traffic comes when it is ready, stops when drained, comes back, and the id is free after removal."""
    running = await gateway(await replica(), routing={"policy": "round_robin"}, health={"interval_s": 0.1})
    extra = await replica()

    async def served_by() -> set[str]:
        return {(await ask(running)).headers["x-kvgate-replica"] for _ in range(6)}

    reply = await admin(running, "/admin/replicas", "POST", {"model": "m", "url": extra.url + "/v1", "id": "extra", "max_inflight": 8})
    assert (reply.status, reply.json()) == (201, {"id": "extra"})
    await eventually(lambda: len(running.table.candidates("m", running.now())[0]) == 2)
    assert await served_by() == {"r1", "extra"}
    [row] = [r for r in (await admin(running, "/admin/replicas")).json()["replicas"] if r["id"] == "extra"]
    assert row["origin"] == "admin"

    assert (await admin(running, "/admin/replicas/extra/drain", "POST", {})).json() == {"id": "extra", "draining": True}
    assert await served_by() == {"r1"}
    assert (await admin(running, "/admin/replicas/extra/undrain", "POST", {})).json() == {"id": "extra", "draining": False}
    assert await served_by() == {"r1", "extra"}

    assert (await admin(running, "/admin/replicas/extra", "DELETE")).status == 202
    assert await served_by() == {"r1"}
    await eventually(lambda: len(running.table.snapshot(running.now())) == 1)
    assert (await admin(running, "/admin/replicas", "POST", {"model": "m", "url": extra.url, "id": "extra"})).status == 201


async def test_a_replica_added_without_an_id_gets_one(replica: Start, gateway: Start) -> None:
    """Made from the address, the same each time, and not the address."""
    extra = await replica()
    names = []
    for _ in range(2):
        running = await gateway(await replica())
        reply = await admin(running, "/admin/replicas", "POST", {"model": "m", "url": extra.url})
        assert reply.status == 201
        names.append(reply.json()["id"])
    assert names[0] == names[1]
    assert str(extra.port) not in names[0]


async def test_a_replica_of_a_new_model_makes_that_model_known(replica: Start, gateway: Start) -> None:
    """Not only models of the file can be served, and an added key goes to that replica."""
    extra = await replica(models=[{"id": "new"}])
    running = await gateway(await replica(), health={"interval_s": 0.1})
    await admin(running, "/admin/replicas", "POST", {"model": "new", "url": extra.url, "api_key": "sk-added-1"})
    await eventually(lambda: running.table.candidates("new", running.now())[0])
    assert (await ask(running, {**CHAT, "model": "new"})).status == 200
    assert extra.requests[0].header("authorization") == "Bearer sk-added-1"
    assert "sk-added-1" not in (await admin(running, "/admin/replicas")).body.decode()
    assert running.mask("sk-added-1") == "***"


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({"model": "m", "url": "http://127.0.0.1:9", "id": "r1"}, 409, "r1"),
        ({"model": "m", "url": "SAME"}, 409, "r1"),
        ({"model": "m", "url": "SAME/v1/"}, 409, "r1"),
        ({"model": "m"}, 422, "url"),
        ({"url": "http://127.0.0.1:9"}, 422, "model"),
        ({"model": "m", "url": "ftp://x"}, 422, "url"),
        ({"model": "m", "url": "http://u:sk-secret@127.0.0.1:9"}, 422, "url"),
        ({"model": "m", "url": "http://127.0.0.1:9/v1/chat/completions"}, 422, "url"),
        ({"model": "m", "url": "http://127.0.0.1:9", "id": "a b"}, 422, "id"),
        ({"model": "m", "url": "http://127.0.0.1:9", "engine": "nope"}, 422, "engine"),
        ({"model": "", "url": "http://127.0.0.1:9"}, 422, "model"),
        ({"model": "m", "url": "http://127.0.0.1:9", "colour": "red"}, 422, "colour"),
        ({"model": "m", "url": "http://127.0.0.1:9", "api_key": "sk-secret has blanks"}, 422, "api_key"),
        ({"model": "m", "url": "https://127.0.0.1:9", "ca_file": "/nowhere"}, 422, "ca_file"),
        ([], 422, "body"),
        ("x", 422, "body"),
    ],
)
async def test_what_cannot_be_added_is_refused_in_one_line(replica: Start, gateway: Start, body: Any, status: int, names: str) -> None:
    """The field at fault is named, its value is not: it may be a secret."""
    r1 = await replica()
    running = await gateway(r1)
    if isinstance(body, dict) and "url" in body:
        body = {**body, "url": body["url"].replace("SAME", r1.url)}
    reply = await admin(running, "/admin/replicas", "POST", body)
    assert reply.status == status
    assert names in reply.json()["detail"]
    assert "secret" not in reply.body.decode()
    assert len(running.table.snapshot(running.now())) == 1


@pytest.mark.parametrize(("method", "suffix"), [("POST", "/drain"), ("POST", "/undrain"), ("DELETE", "")])
async def test_an_unknown_replica_is_404(replica: Start, gateway: Start, method: str, suffix: str) -> None:
    """With its id, and where to find the right ones."""
    reply = await admin(await gateway(await replica()), f"/admin/replicas/nope{suffix}", method)
    assert reply.status == 404
    assert "'nope'" in reply.json()["detail"]


async def test_a_replica_that_never_answered_can_be_removed(replica: Start, gateway: Start) -> None:
    """What status shows can be drained and removed, whatever its state."""
    running = await gateway(await replica(), models=[])
    assert (await admin(running, "/admin/replicas", "POST", {"model": "x", "url": "http://127.0.0.1:9", "id": "typo"})).status == 201
    assert (await admin(running, "/admin/replicas/typo/drain", "POST", {})).status == 200
    assert (await admin(running, "/admin/replicas/typo", "DELETE")).status == 202
    await eventually(lambda: not running.table.snapshot(running.now()))


# -- explanations --------------------------------------------------------------------------------------------------------


async def test_a_request_is_explained_with_every_candidate_and_term(replica: Start, gateway: Start) -> None:
    """Scores by term, predicted and actual cache hit, times, and what kept replicas out, also of a request id with odd characters."""
    usage = {"prompt_tokens": 900, "completion_tokens": 3, "total_tokens": 903, "prompt_tokens_details": {"cached_tokens": 768}}
    script = streams(ev("a"), ev("", choices=[], usage=usage), DONE)
    running = await gateway(await replica(script), await replica(script), await replica(script), r3={"context_length": 1000})
    running.drain("r2", draining=True)
    body = {**STREAM, "messages": [{"role": "user", "content": "once upon a time " * 200}], "max_tokens": 900}
    for request_id in ("first", "chat/a:b=c+1"):
        await ask(running, body, headers=f"x-request-id: {request_id}\r\n")
    [told] = (await admin(running, "/admin/explain/chat/a:b=c+1")).json()["tries"]
    assert (told["replica"], told["model"], told["policy"], told["outcome"]) == ("r1", "m", "weighted", "ok")
    [candidate] = told["candidates"]
    assert candidate["chosen"] and candidate["score"] > 0
    assert set(candidate["terms"]) == {"gpu", "kv", "prefix", "queue"}
    assert all(set(term) == {"value", "goodness", "weight", "contribution"} for term in candidate["terms"].values())
    assert {f["replica"]: f["reason"] for f in told["filtered"]} == {"r2": "draining", "r3": "context_length"}
    assert told["predicted"]["hit"] > 0.9 and told["predicted"]["cached_tokens"] > 0
    assert (told["actual"]["prompt_tokens"], told["actual"]["cached_tokens"]) == (900, 768)
    assert told["actual"]["ttft_s"] >= 0
    assert told["at"].startswith("20") and told["at"].endswith("+00:00")


async def test_every_try_of_a_request_is_explained(replica: Start, gateway: Start) -> None:
    """The first, which failed, and the second, which knows that the first was tried."""
    running = await gateway(await replica(sends(http(500))), await replica(sends(http(500))))
    await ask(running, headers="x-request-id: twice\r\n")
    first, second = (await admin(running, "/admin/explain/twice")).json()["tries"]
    assert {first["replica"], second["replica"]} == {"r1", "r2"}
    assert second["filtered"] == [{"replica": first["replica"], "reason": "tried"}]


async def test_a_request_that_still_runs_can_be_explained(replica: Start, gateway: Start) -> None:
    """Where it is, before it has an outcome: that is when people ask."""

    async def hold(conn: Conn) -> None:
        await conn.hold()

    running = await gateway(await replica(hold))
    async with Client(running.ports[0]) as client:
        await client.post("/v1/chat/completions", CHAT, "x-request-id: now\r\n")
        await eventually(lambda: running.service.running)
        [told] = (await admin(running, "/admin/explain/now")).json()["tries"]
        assert (told["replica"], told["outcome"]) == ("r1", None)


async def test_a_request_nobody_could_take_is_explained_too(replica: Start, gateway: Start) -> None:
    """Which replicas there are, and what each lacked."""
    running = await gateway(await replica(), await replica())
    for name in ("r1", "r2"):
        running.drain(name, draining=True)
    assert (await ask(running, headers="x-request-id: none\r\n")).status == 503
    [told] = (await admin(running, "/admin/explain/none")).json()["tries"]
    assert (told["replica"], told["outcome"]) == (None, "no_replica_ready")
    assert {f["reason"] for f in told["filtered"]} == {"draining"}


async def test_an_unknown_request_id_is_404(replica: Start, gateway: Start) -> None:
    """With how many are kept."""
    reply = await admin(await gateway(await replica()), "/admin/explain/nope")
    assert (reply.status, "10,000" in reply.json()["detail"]) == (404, True)


async def test_decisions_are_listed_newest_first(replica: Start, gateway: Start) -> None:
    """As many as asked for, within limits."""
    running = await gateway(await replica())
    for i in range(5):
        await ask(running, headers=f"x-request-id: n{i}\r\n")
    told = (await admin(running, "/admin/decisions?limit=3")).json()["decisions"]
    assert [d["request_id"] for d in told] == ["n4", "n3", "n2"]
    assert len((await admin(running, "/admin/decisions")).json()["decisions"]) == 5
    for limit in ("0", "10001", "x"):
        assert (await admin(running, f"/admin/decisions?limit={limit}")).status == 422


async def test_the_configuration_is_shown_without_its_secrets(replica: Start, gateway: Start) -> None:
    """Every section with its effective values, stars for keys, tokens and header values."""
    secrets = {"r1": {"api_key": "sk-secret-1", "headers": {"x-auth": "sk-secret-2"}}}
    server = {"api_keys": ["sk-secret-3"], "admin": {"port": 0, "token": "sk-secret-4"}}
    running = await gateway(await replica(), server=server, **secrets)
    reply = await admin(running, "/admin/config", headers="authorization: Bearer sk-secret-4\r\n")
    assert "secret" not in reply.body.decode()
    told = reply.json()
    assert told["retries"]["attempts"] == 2
    assert told["models"][0]["replicas"][0]["id"] == "r1"
    assert {
        "server",
        "models",
        "routing",
        "usage",
        "admission",
        "limits",
        "timeouts",
        "health",
        "scrape",
        "breaker",
        "drain",
        "log",
    } <= set(told)


async def test_the_console_is_one_page_that_asks_for_no_other_site(replica: Start, gateway: Start) -> None:
    """Self-contained, allowed to talk to this gateway only, and without a word of data in it."""
    reply = await admin(await gateway(await replica()), "/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    page = reply.body.decode()
    assert "https://" not in page and "http://" not in page and "innerHTML" not in page
    assert "/admin/replicas" in page and "/admin/decisions" in page


async def test_the_api_describes_itself(replica: Start, gateway: Start) -> None:
    """OpenAPI with every route, at /docs for people."""
    running = await gateway(await replica())
    paths = (await admin(running, "/openapi.json")).json()["paths"]
    assert {path.split("/{")[0] for path in paths} == {
        "/", "/metrics", "/admin/replicas", "/admin/explain", "/admin/decisions", "/admin/config", "/admin/reload",
    }  # fmt: skip
    assert "/openapi.json" in (await admin(running, "/docs")).body.decode()
    assert (await admin(running, "/nothing")).status == 404
    assert (await admin(running, "/admin/replicas", "PUT", {})).status == 405

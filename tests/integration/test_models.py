"""Model names: what is listed, what a name leads to, and what a client is told of a model that cannot answer."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from gateway.settings import Settings
from tests.integration.scripts import sends
from tests.integration.toolkit import (
    CHAT,
    DONE,
    Client,
    Conn,
    Reply,
    Scripted,
    ask,
    completion,
    ev,
    eventually,
    http,
    refused,
    running,
    settings_for,
)

if TYPE_CHECKING:
    from gateway.app import Gateway

    Start = Any

BASE = {"object": "model", "owned_by": "vllm", "created": 1, "max_model_len": 4096, "permission": [{"id": "p"}]}


def listed(model: str, **more: Any) -> dict[str, Any]:
    return {"id": model, "root": model, "parent": None, **BASE, **more}


async def get(gateway: Gateway, path: str, method: str = "GET") -> Reply:
    async with Client(gateway.ports[0]) as client:
        await client.get(path, method=method)
        return await client.reply()


async def ids(gateway: Gateway) -> list[str]:
    return [entry["id"] for entry in (await get(gateway, "/v1/models")).json()["data"]]


def dead(port: int = 9) -> dict[str, str]:
    return {"url": f"http://127.0.0.1:{port}"}


# -- the list ------------------------------------------------------------------------------------------------------------


async def test_the_model_list_is_merged_and_keeps_the_engines_fields(replica: Start, gateway: Start) -> None:
    """Every model, adapter and alias once, sorted, without a replica's address; a replica that fails to list takes none away."""
    lora = listed("m-lora", root="/adapters/x", parent="m", max_model_len=None)
    r1 = await replica(models=[listed("m"), lora])
    r2 = await replica(models=[listed("m", max_model_len=2048), listed("k")])
    models = [
        {"name": "m", "aliases": ["gpt-x"], "replicas": [{"url": r1.url}, {"url": r2.url}, dead()]},
        {"name": "k", "replicas": [{"url": r2.url, "id": "r2k"}]},
        {"name": "asleep", "replicas": [{**dead(), "id": "z"}]},
    ]
    running = await gateway(models=models)
    reply = await get(running, "/v1/models")
    assert (reply.status, reply.json()["object"]) == (200, "list")
    assert await ids(running) == ["asleep", "gpt-x", "k", "m", "m-lora"] == sorted(await ids(running))
    entries = {entry["id"]: entry for entry in reply.json()["data"]}
    assert {name: entries["m"][name] for name in (*BASE, "root")} == {**BASE, "root": "m"}
    assert entries["gpt-x"]["max_model_len"] == 4096
    assert entries["m-lora"]["parent"] == "m"
    assert entries["asleep"]["object"] == "model"
    assert str(r1.port) not in reply.body.decode() and str(r2.port) not in reply.body.decode()
    assert (await get(running, "/v1/models/m")).json() == entries["m"]
    refused(await get(running, "/v1/models/nope"), 404, "model_not_found")


async def test_without_a_file_every_listed_model_is_served(replica: Start) -> None:
    """`--replica URL` alone: names come from the replica."""
    r1 = await replica(models=[listed("a"), listed("org/B")])
    settings = settings_for(models=[]).model_copy(update={"discover": Settings.model_validate({"discover": [{"url": r1.url}]}).discover})
    async with running(settings) as gateway:
        assert await ids(gateway) == ["a", "org/B"]
        assert (await ask(gateway, {**CHAT, "model": "org/B"})).status == 200
        assert r1.requests[0].json()["model"] == "org/B"


AWKWARD = ["org/Name-7B:q4", "999 My Model", "ünï", "Case", "a%2Fb", "..", "x" * 256, 'q"uote', "a?b#c"]


async def test_awkward_names_work_everywhere(replica: Start, gateway: Start) -> None:
    """Slash, colon, space, percent, upper case and other alphabets: exact matches in bodies, and in paths written either way."""
    r1 = await replica(models=[listed(name) for name in AWKWARD])
    running = await gateway(models=[{"name": name, "replicas": [{"url": r1.url, "id": f"r{i}"}]} for i, name in enumerate(AWKWARD)])
    assert sorted(await ids(running)) == sorted(AWKWARD)
    for name in AWKWARD:
        reply = await ask(running, {**CHAT, "model": name})
        assert reply.status == 200
        assert r1.requests[-1].json()["model"] == name
        assert reply.headers["x-kvgate-model"].isascii()
        assert (await get(running, "/v1/models/" + quote(name, safe=""))).json()["id"] == name
    assert (await get(running, "/v1/models/org/Name-7B:q4")).json()["id"] == "org/Name-7B:q4"
    for wrong in ("case", "ORG/NAME-7B:Q4", "999 My Model ", "un\u0308i\u0308"):
        refused(await ask(running, {**CHAT, "model": wrong}), 404, "model_not_found")


async def test_head_of_the_model_list_has_no_body(replica: Start, gateway: Start) -> None:
    """HEAD tells the length and leaves the connection usable."""
    running = await gateway(await replica())
    async with Client(running.ports[0]) as client:
        await client.get("/v1/models", method="HEAD")
        status, headers = await client.head()
        assert (status, int(headers["content-length"]) > 0) == (200, True)
        await client.get("/v1/models")
        assert (await client.reply()).status == 200


# -- which replica, by which name ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_alias_is_the_same_model_by_another_name(replica: Start, gateway: Start, stream: bool) -> None:
    """The replica gets its own name, the answer is passed as it is, and the headers name the real model: for JSON and streams alike."""

    async def script(conn: Conn) -> None:
        await (conn.stream(ev("a"), DONE) if conn.request.json()["stream"] else conn.send(completion()))

    r1: Scripted = await replica(script)
    running = await gateway(models=[{"name": "m", "aliases": ["gpt-x", "gpt-y"], "replicas": [{"url": r1.url}]}])
    reply = await ask(running, {**CHAT, "model": "gpt-y", "stream": stream})
    assert r1.requests[0].json()["model"] == "m"
    assert b'"model": "m"' in reply.body and b"gpt-y" not in reply.body
    assert reply.headers["x-kvgate-model"] == "m"


async def test_names_of_one_model_share_its_cached_prefixes(replica: Start, gateway: Start) -> None:
    """Routing sees the model behind the alias."""
    r1 = await replica()
    running = await gateway(models=[{"name": "m", "aliases": ["gpt-x"], "replicas": [{"url": r1.url}]}])
    prompt = {"messages": [{"role": "user", "content": "once upon a time " * 500}]}
    await ask(running, {"model": "m", **prompt})
    assert float((await ask(running, {"model": "gpt-x", **prompt})).headers["x-kvgate-prefix-hit"]) > 0.9


async def test_each_replica_is_asked_by_its_own_name(replica: Start, gateway: Start) -> None:
    """`served_model`, the listed name or alias, or the only model there is: found per replica."""
    told = await replica(models=[listed("llama-a"), listed("llama-b")])
    alias = await replica(models=[listed("gpt-x"), listed("zzz")])
    only = await replica(models=[listed("/models/llama"), listed("lora", parent="/models/llama", root="x")])
    other = await replica(models=[listed("p"), listed("q")])
    entries = [{"url": told.url, "served_model": "llama-b"}, {"url": alias.url}, {"url": only.url}, {"url": other.url}]
    running = await gateway(models=[{"name": "m", "aliases": ["gpt-x"], "replicas": entries}], routing={"policy": "round_robin"})
    for i in range(9):
        assert (await ask(running, {**CHAT, "user": str(i)})).status == 200
    assert [{r.json()["model"] for r in x.requests} for x in (told, alias, only, other)] == [
        {"llama-b"},
        {"gpt-x"},
        {"/models/llama"},
        set(),
    ]
    [problem] = [row.reason for row in running.table.snapshot(running.now()) if row.id == "r4"]
    assert "set served_model" in (problem or "")


async def test_an_adapter_is_asked_only_of_replicas_that_have_it(replica: Start, gateway: Start) -> None:
    """LoRA adapters are models of their own, found in the replicas' lists."""
    plain = await replica()
    with_lora = await replica(models=[listed("m"), listed("m-lora", parent="m", root="/x")])
    running = await gateway(plain, with_lora)
    for i in range(6):
        reply = await ask(running, {**CHAT, "model": "m-lora", "user": str(i)})
        assert (reply.status, reply.headers["x-kvgate-replica"], reply.headers["x-kvgate-model"]) == (200, "r2", "m-lora")
    assert plain.requests == []
    assert {r.json()["model"] for r in with_lora.requests} == {"m-lora"}


async def test_one_server_under_two_models_is_one_server(replica: Start, gateway: Start) -> None:
    """Its load counts for both, and draining it under one name drains it for the other."""

    async def hold(conn: Conn) -> None:
        await conn.hold()

    both = await replica(hold, models=[listed("a"), listed("b")])
    spare = await replica(models=[listed("b")])
    models = [
        {"name": "a", "replicas": [{"id": "a1", "url": both.url}]},
        {"name": "b", "replicas": [{"id": "b1", "url": both.url + "/v1/"}, {"id": "b2", "url": spare.url}]},
    ]
    running = await gateway(models=models)
    async with AsyncExitStack() as clients:
        for _ in range(6):  # clearly more than the idle server has
            client = await clients.enter_async_context(Client(running.ports[0]))
            await client.post("/v1/chat/completions", {**CHAT, "model": "a"})
        await eventually(lambda: len(both.requests) == 6)
        assert running.table.replicas("a")[0].server is running.table.replicas("b")[0].server
        assert (await ask(running, {**CHAT, "model": "b"})).headers["x-kvgate-replica"] == "b2"
        running.drain("a1", draining=True)
        for i in range(6):
            assert (await ask(running, {**CHAT, "model": "b", "user": str(i)})).headers["x-kvgate-replica"] == "b2"
        refused(await ask(running, {**CHAT, "model": "a"}), 503, "no_replica_ready")


async def test_a_request_goes_where_its_length_fits(replica: Start, gateway: Start) -> None:
    """A replica whose context is clearly too short is left out; when all are, the engine is asked and explains it best."""
    too_long = b'{"error":{"message":"context","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}'
    short, long = await replica(sends(http(400, too_long))), await replica()
    running = await gateway(short, long, r1={"context_length": 500}, r2={"context_length": 8000})
    body = {**CHAT, "messages": [{"role": "user", "content": "word " * 2000}]}
    assert {(await ask(running, body)).headers["x-kvgate-replica"] for _ in range(4)} == {"r2"}
    assert {(await ask(running, {**CHAT, "max_tokens": 4000})).headers["x-kvgate-replica"] for _ in range(4)} == {"r2"}
    tight = await gateway(short, r1={"context_length": 500})
    reply = await ask(tight, body)
    assert (reply.status, reply.body) == (400, too_long)


# -- models that cannot answer -------------------------------------------------------------------------------------------


async def test_a_model_without_a_ready_replica_is_not_unknown(replica: Start, gateway: Start) -> None:
    """503 with retry-after for a configured model, before and after a restart; 404 for a name that is nobody's. Both name the model."""
    models = [{"name": "m", "aliases": ["gpt-x"], "replicas": [dead()]}]
    for _ in range(2):
        running = await gateway(models=models)
        for name in ("m", "gpt-x"):
            reply = await ask(running, {**CHAT, "model": name})
            assert "'m'" in refused(reply, *(503, "no_replica_ready") if reply.status == 503 else (502, "upstream_connect"))["message"]
        error = refused(await ask(running, {**CHAT, "model": "nope"}), 404, "model_not_found")
        assert "'nope'" in error["message"] and error["type"] == "invalid_request_error"


async def test_a_model_without_any_replica_is_503(gateway: Start) -> None:
    """Scaled to zero: come back later."""
    running = await gateway(models=[{"name": "m"}])
    reply = await ask(running)
    refused(reply, 503, "no_replica_ready")
    assert int(reply.headers["retry-after"]) >= 1


async def test_an_unknown_name_is_starting_while_replicas_are_being_discovered(replica: Start) -> None:
    """Without a list yet nobody can say that a model does not exist."""
    silent = await replica(health=503, models=[])
    settings = settings_for(models=[])
    settings = settings.model_copy(update={"discover": Settings.model_validate({"discover": [dead(silent.port)]}).discover})
    await silent.stop()
    async with running(settings) as gateway:
        refused(await ask(gateway), 503, "starting")


async def test_readiness_can_ask_for_a_model(replica: Start, gateway: Start) -> None:
    """`readyz` says that the gateway answers; with `?model=` whether that model can be served now, by any of its names."""
    r1 = await replica()
    models = [{"name": "m", "aliases": ["a b"], "replicas": [{"url": r1.url}]}, {"name": "gone", "replicas": [{**dead(), "id": "x"}]}]
    running = await gateway(models=models)
    expected = {"": 200, "?model=m": 200, "?model=a%20b": 200, "?model=gone": 503, "?model=m&model=gone": 503, "?model=nope": 503}
    assert {q: (await get(running, f"/readyz{q}")).status for q in expected} == expected
    assert json.loads((await get(running, "/health")).body)["usable_replicas"] == {"m": 1, "gone": 0}
    for path in ("/livez", "/healthz", "/health/readiness", "/health/liveliness", "/health/liveness"):
        assert (await get(running, path)).status == 200

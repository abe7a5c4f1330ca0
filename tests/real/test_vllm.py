"""Real vLLM, and the gateway in front of two of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from replicas.tiny_model import MAX_TOKENS
from tests.clients.fleet import HTTP, Served, served, soon
from tests.contract import vllm_shapes
from tests.contract.simulated import simulated
from tests.contract.vllm_shapes import CHECKS, Check, Probe, sleeping
from tests.real.engines import BLOCK, BLOCKS, MODEL, Engine, engines
from tests.real.programs import VLLM_INSTALLED, need

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),  # the first test waits for two engines to start
    need("", "vllm", VLLM_INSTALLED),
]

# Checks of what the gateway passes on; the others are of pages and answers it makes itself.
RELAYED = (
    vllm_shapes.chat_whole, vllm_shapes.chat_stream, vllm_shapes.streamed_and_whole_agree, vllm_shapes.chat_usage_on_request,
    vllm_shapes.usage_on_every_chunk, vllm_shapes.completion_whole_and_stream, vllm_shapes.several_choices, vllm_shapes.several_prompts,
    vllm_shapes.prompts_of_tokens, vllm_shapes.log_probabilities, vllm_shapes.repeated_prompts_are_cached,
    vllm_shapes.messages_whole_and_stream, vllm_shapes.responses_whole_and_stream, vllm_shapes.tokenise_and_back,
    vllm_shapes.unknown_fields_are_ignored,
)  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """Two engines by the ids of their replicas. The last test of this file ends one of them."""
    with engines(2, tmp_path_factory.mktemp("engines")) as (first, second):
        yield {"a": first, "b": second}


@pytest.fixture(scope="module")
def gateway(pair: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """In front of both."""
    replicas = [{"id": name, "url": engine.url} for name, engine in pair.items()]
    settings = {
        "models": [{"name": MODEL, "replicas": replicas}],
        "health": {"interval_s": 0.5},
        "scrape": {"interval_s": 0.5},
        "timeouts": {"idle_s": 3},
    }
    with served(tmp_path_factory.mktemp("gateway"), settings) as running:
        yield running


@pytest.fixture
def client(gateway: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as out:
        yield out


def ask(client: openai.OpenAI, turns: Any, **more: Any) -> tuple[str, str, str]:
    """(replica, request id, text) of one answer."""
    asked = {"model": MODEL, "messages": turns, "max_tokens": 8, "extra_body": {"ignore_eos": True}, **more}
    raw = client.chat.completions.with_raw_response.create(**asked)
    return raw.headers["x-kvgate-replica"], raw.headers["x-request-id"], raw.parse().choices[0].message.content or ""


def ask_at_once(client: openai.OpenAI, about: str, count: int = 8) -> set[str]:
    """The replicas that answer as many different prompts at the same time."""
    with ThreadPoolExecutor(count) as threads:
        return set(threads.map(lambda at: ask(client, story(f"{about} {at}"))[0], range(count)))


def story(about: str) -> list[dict[str, str]]:
    """A prompt of about a thousand tokens."""
    return [{"role": "user", "content": f"Once upon a time {about} " * 30}]


@pytest.mark.parametrize("check", [*CHECKS, sleeping], ids=lambda check: check.__name__)
async def test_vllm_has_the_shape_we_think_it_has(check: Check, pair: dict[str, Engine]) -> None:
    """Everything the simulated replica was built after, on the engine itself."""
    async with httpx.AsyncClient(base_url=pair["a"].url, timeout=60, trust_env=False) as http:
        await check(Probe(http, MODEL, block=BLOCK))


@pytest.mark.parametrize("check", [*CHECKS, sleeping], ids=lambda check: check.__name__)
async def test_the_simulated_replica_has_it_too(check: Check) -> None:
    """The same checks with the same block size."""
    async with simulated(model=MODEL, max_model_len=4096, block_size=BLOCK) as (_, http):
        await check(Probe(http, MODEL, block=BLOCK))


@pytest.mark.parametrize("check", RELAYED, ids=lambda check: check.__name__)
async def test_the_gateway_passes_it_on(check: Check, gateway: Served) -> None:
    """What a client may rely on at vLLM it may rely on here."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as http:
        await check(Probe(http, MODEL, block=BLOCK))


def test_the_gateway_knows_its_replicas(gateway: Served) -> None:
    """Engine, capacity and live signals are found without being told."""
    soon(lambda: all(row["capacity_tokens"] == BLOCK * BLOCKS for row in gateway.replicas().values()), 3)
    for row in gateway.replicas().values():
        assert (row["engine"], row["version"], row["health"]) == ("vllm", "0.32.0", "up")
        assert (row["served"], row["context_length"], row["warnings"]) == (MODEL, MAX_TOKENS, [])
        assert None not in (row["signals"][name]["value"] for name in ("running", "waiting", "kv_usage"))


def test_a_conversation_stays_where_its_prefix_is(client: openai.OpenAI, gateway: Served) -> None:
    """Every turn goes to the replica of the first, and the engine confirms what was predicted."""
    turns: list[dict[str, str]] = story("there was a cache")
    home, _, text = ask(client, turns)
    for question in ("Who?", "Why?", "And then?"):
        turns = [*turns, {"role": "assistant", "content": text}, {"role": "user", "content": question}]
        replica, request_id, text = ask(client, turns)
        (decision,) = gateway.explain(request_id)
        assert replica == decision["replica"] == home
        assert decision["predicted"]["hit"] > 0.8
        assert decision["actual"]["cached_tokens"] > 0.8 * decision["actual"]["prompt_tokens"]


def test_conversations_spread_over_the_replicas(client: openai.OpenAI) -> None:
    """New prompts at the same time go to either."""
    assert ask_at_once(client, "number") == {"a", "b"}


def test_a_client_that_leaves_frees_the_engine(client: openai.OpenAI, pair: dict[str, Engine], gateway: Served) -> None:
    """vLLM aborts the request within a second."""
    asked = {"max_tokens": 3000, "stream": True, "extra_body": {"ignore_eos": True}}
    running = "vllm:num_requests_running"
    with client.chat.completions.create(model=MODEL, messages=story("of haste"), **asked) as stream:
        next(iter(stream))
        soon(lambda: sum(engine.total(running) for engine in pair.values()) == 1, 3)
    soon(lambda: not sum(engine.total(running) for engine in pair.values()), 1.5)
    soon(lambda: not gateway.total("kvgate_requests_running"))


def test_a_sleeping_replica_gets_nothing(client: openai.OpenAI, pair: dict[str, Engine], gateway: Served) -> None:
    """It would take requests and leave them hanging; awake it is used again."""
    HTTP.post(f"{pair['a'].url}/sleep?level=1").raise_for_status()
    soon(lambda: gateway.replicas()["a"]["health"] == "asleep", 5)
    assert ask_at_once(client, "asleep") == {"b"}
    HTTP.post(f"{pair['a'].url}/wake_up").raise_for_status()
    soon(lambda: gateway.replicas()["a"]["health"] == "up", 5)
    assert ask_at_once(client, "awake") == {"a", "b"}


def test_a_terminated_replica_is_not_missed(client: openai.OpenAI, pair: dict[str, Engine]) -> None:
    """SIGTERM under load: its open stream does not end as if it were whole, all that follows is served by the other. Last: it is gone."""
    asked = {"max_tokens": 3000, "stream": True, "extra_body": {"ignore_eos": True}}
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=story("of endings"), **asked)
    ended, left = (raw.headers["x-kvgate-replica"], *({"a", "b"} - {raw.headers["x-kvgate-replica"]}))
    stream = iter(raw.parse())
    next(stream)
    pair[ended].process.terminate()
    assert ask_at_once(client, "after") == {left}
    # vLLM calls it aborted, sends an error, or says no more and leaves the connection open until the gateway's patience ends.
    assert end_of(stream) not in ("stop", "length", None)


def end_of(stream: Iterator[Any]) -> str | None:
    """How a stream ends: its last finish reason, or the code of its error."""
    reason = None
    try:
        for chunk in stream:
            reason = chunk.choices[0].finish_reason
    except openai.APIError as error:
        return error.code
    return reason

"""Health, listings, metrics and vLLM's development switches."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs

import msgspec
import orjson

from replicas.simulator.bodies import AdapterBody, decode
from replicas.simulator.errors import ApiError
from replicas.simulator.metrics import CONTENT_TYPE, Family, labels
from replicas.simulator.replica import VERSION, Call, Replica
from replicas.simulator.wire import Reply, Request

SLEEP_STATES = {"0": "awake", "1": "weights_offloaded", "2": "discard_all"}


def health(call: Call) -> None:
    """GET /health, GET or POST /ping: an empty 200, asleep or not."""
    call.reply.send(200, b"", "")


def version(call: Call) -> None:
    """GET /version."""
    _json(call.reply, {"version": VERSION})


def load(call: Call) -> None:
    """GET /load: requests in flight, 0 unless tracking is on."""
    _json(call.reply, {"server_load": len(call.replica.inflight) if call.replica.options.load_tracking else 0})


def models(call: Call) -> None:
    """GET /v1/models."""
    base = call.replica.options.names
    cards = [_card(call.replica, name, call.replica.options.model, None) for name in base]
    cards += [_card(call.replica, name, name, base[0]) for name in call.replica.loras]
    _json(call.reply, {"object": "list", "data": cards})


def metrics(call: Call) -> None:
    """GET /metrics."""
    page = call.replica.stats.page(call.replica.engine, sleep_state=call.replica.sleep_state, loras=_adapters(call.replica))
    call.reply.send(200, page, CONTENT_TYPE)


def load_adapter(call: Call) -> None:
    """POST /v1/load_lora_adapter."""
    name = decode(call.request, AdapterBody).lora_name
    if name in call.replica.loras:
        raise ApiError(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
    call.replica.loras.append(name)
    call.reply.send(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), "text/plain; charset=utf-8")


def unload_adapter(call: Call) -> None:
    """POST /v1/unload_lora_adapter."""
    name = decode(call.request, AdapterBody).lora_name
    if name not in call.replica.loras:
        raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
    call.replica.loras.remove(name)
    call.reply.send(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), "text/plain; charset=utf-8")


def sleep(call: Call) -> None:
    """POST /sleep?level=0|1|2&mode=abort|wait|keep: from now on requests are taken and not answered."""
    level = _query(call.request, "level", "1")
    if level not in SLEEP_STATES:
        raise ApiError(400, f"level must be one of 0, 1, 2, got {level}.", "BadRequestError", "level")
    if _query(call.request, "mode", "abort") == "abort":
        _abort_all(call.replica)
    call.replica.clock.pause()
    call.replica.sleep_state = SLEEP_STATES[level]
    if level != "0":
        call.replica.engine.pool.forget()
    _json(call.reply, {"status": "sleeping", "level": int(level)})


def wake_up(call: Call) -> None:
    """POST /wake_up."""
    call.replica.sleep_state = "awake"
    call.replica.clock.resume()
    _json(call.reply, {"status": "awake", "tags": parse_qs(call.request.query).get("tags")})


def is_sleeping(call: Call) -> None:
    """GET /is_sleeping."""
    _json(call.reply, {"is_sleeping": call.replica.clock.paused})


def pause(call: Call) -> None:
    """POST /pause?mode=abort|wait|keep."""
    if _query(call.request, "mode", "abort") == "abort":
        _abort_all(call.replica)
    call.replica.clock.pause()
    _json(call.reply, {"status": "paused"})


def resume(call: Call) -> None:
    """POST /resume."""
    call.replica.clock.resume()
    _json(call.reply, {"status": "resumed"})


def is_paused(call: Call) -> None:
    """GET /is_paused."""
    _json(call.reply, {"is_paused": call.replica.clock.paused})


def reset_prefix_cache(call: Call) -> None:
    """POST /reset_prefix_cache: blocks in use stay."""
    call.replica.engine.pool.forget()
    _json(call.reply, {"success": not call.replica.engine.running})


def server_info(call: Call) -> None:
    """GET /server_info."""
    options = {name: value for name, value in msgspec.to_builtins(call.replica.options).items() if name != "api_keys"}
    _json(call.reply, {"vllm_config": options, "vllm_env": {}})


def _abort_all(replica: Replica) -> None:
    for generation in list(replica.inflight):
        generation.cut_short()


def _card(replica: Replica, name: str, root: str, parent: str | None) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": replica.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": replica.created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": replica.max_model_len if parent is None else None,
        "permission": [permission],
    }


def _adapters(replica: Replica) -> list[Family]:
    if not replica.loras:
        return []
    running = {
        track.lora for generation in replica.inflight for track in generation.tracks if track.lora and track.job.scheduled_at is not None
    }
    waiting = {
        track.lora for generation in replica.inflight for track in generation.tracks if track.lora and track.job.scheduled_at is None
    }
    text = labels(
        max_lora=len(replica.loras), running_lora_adapters=",".join(sorted(running)), waiting_lora_adapters=",".join(sorted(waiting))
    )
    return [Family("vllm:lora_requests_info", "gauge", "Adapters in use; the value is the time.", [(text, time.time())])]


def _query(request: Request, name: str, default: str) -> str:
    return parse_qs(request.query).get(name, [default])[0]


def _json(reply: Reply, value: object) -> None:
    reply.send(200, orjson.dumps(value))

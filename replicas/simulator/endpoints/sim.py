"""The simulator's own switches: faults, state, reset. No vLLM has these."""

from __future__ import annotations

import msgspec
import orjson

from replicas.simulator.errors import bad_request
from replicas.simulator.faults import Fault
from replicas.simulator.replica import Call


def add_faults(call: Call) -> None:
    """POST /sim/faults: one fault object or a list of them, added to those in force."""
    try:
        faults = msgspec.json.decode(call.request.body, type=list[Fault] | Fault)
    except msgspec.MsgspecError as error:
        raise bad_request(str(error), "body") from None
    for fault in faults if isinstance(faults, list) else [faults]:
        call.replica.faults.add(fault, call.replica.clock.now())
    list_faults(call)


def list_faults(call: Call) -> None:
    """GET /sim/faults: those in force."""
    call.reply.send(200, msgspec.json.encode({"faults": call.replica.faults.active(call.replica.clock.now())}))


def clear_faults(call: Call) -> None:
    """DELETE /sim/faults."""
    call.replica.faults.clear()
    list_faults(call)


def state(call: Call) -> None:
    """GET /sim/state: the engine at this moment, and the latest requests, newest last."""
    engine = call.replica.engine
    pool = engine.pool
    shown = {
        "model": call.replica.options.names[0],
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "inflight": len(call.replica.inflight),
        "paused": call.replica.clock.paused,
        "draining": call.replica.draining,
        "kv": {"capacity": pool.capacity, "used": pool.used, "cached": pool.cached, "evictions": pool.evictions, "usage": engine.kv_usage},
        "prefix": {"queries": engine.queries, "hits": engine.hits},
        "preemptions": engine.preemptions,
        "asked": call.replica.asked,
        "faults": {
            "active": msgspec.to_builtins(call.replica.faults.active(call.replica.clock.now())),
            "struck": call.replica.faults.struck,
        },
        "recent": list(call.replica.recent),
    }
    call.reply.send(200, orjson.dumps(shown))


def reset(call: Call) -> None:
    """POST /sim/reset: as if restarted. Requests in flight are cut off, faults end, cache and counters are empty."""
    for generation in list(call.replica.inflight):
        generation.cut_off()
    call.replica.faults.clear()
    call.replica.recent.clear()
    call.replica.restart()
    call.reply.send(200, b"{}")

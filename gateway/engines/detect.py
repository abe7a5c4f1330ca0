"""The registry of engines, and which of them a server of unknown kind is."""

from __future__ import annotations

from gateway.engines.base import Engine, Evidence
from gateway.engines.openai import OPENAI
from gateway.engines.vllm import VLLM

# In the order in which they are tried on an unknown server; the last one takes everything.
ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VLLM, OPENAI)}


def detect(evidence: Evidence) -> Engine:
    """The first engine that recognises itself."""
    return next(engine for engine in ENGINES.values() if engine.recognises(evidence))


def engine_named(name: str) -> Engine:
    """The engine of this name; engines without a module of their own are spoken to as plain OpenAI servers."""
    return ENGINES.get(name, OPENAI)

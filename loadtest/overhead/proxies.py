"""The proxies that are compared: how each is configured, started and known to be ready. A table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest import gateway, rivals
from loadtest.overhead.replica import MODEL


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy is to run: its port, a second one for its own metrics, the replicas' ports, a file for its configuration."""

    port: int
    side_port: int
    replicas: tuple[int, ...]
    config: Path

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.replicas]


@dataclass(frozen=True, slots=True)
class Proxy:
    """One row. A proxy that could not keep up with the usual load gets another: `stream_pace` (events per second of each
    stream), `most_streams`, `probes_per_s`; `note` says so below the table.
    """

    name: str
    title: str
    command: Callable[[Place], list[str]]
    config: Callable[[Place], str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str | None = "/v1/models"
    start_timeout_s: float = 60.0
    stream_pace: Mapping[int, float] = field(default_factory=dict)
    most_streams: int = 1000
    probes_per_s: float = 50.0
    note: str = ""

    @property
    def label(self) -> str:
        """Title, and the version if it is pinned."""
        return " ".join((self.title, *rivals.PINS.get(self.name, "").split("==")[1:]))


def _bin(name: str, command: str) -> str:
    return str(rivals.venv(name) / "bin" / command)


def _pipe(place: Place) -> list[str]:
    return [sys.executable, "-m", "loadtest.overhead.pipe", "--port", str(place.port), *map(str, place.replicas)]


def _kvgate(place: Place) -> list[str]:
    return gateway.command(place.config)


def _kvgate_config(place: Place) -> str:
    return gateway.configuration(MODEL, place.urls, port=place.port, admin_port=place.side_port)


def _rust(command: list[str]) -> Callable[[Place], list[str]]:
    """The three Rust routers share their ancestor's options."""

    def built(place: Place) -> list[str]:
        ports = ["--port", str(place.port), "--prometheus-port", str(place.side_port)]
        return [*command, "--host", "127.0.0.1", *ports, "--policy", "cache_aware", "--worker-urls", *place.urls]

    return built


def _litellm(place: Place) -> list[str]:
    return [_bin("litellm", "litellm"), "--config", str(place.config), "--host", "127.0.0.1", "--port", str(place.port)]


def _litellm_config(place: Place) -> str:
    entries = [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}}
        for url in place.urls
    ]
    return json.dumps({"model_list": entries})


PROXIES: dict[str, Proxy] = {
    proxy.name: proxy
    for proxy in (
        Proxy("pipe", "byte pipe (floor)", _pipe),
        Proxy("kvgate", "kvgate", _kvgate, _kvgate_config, ready="/readyz"),
        Proxy("smg", "SMG", _rust([_bin("smg", "smg"), "launch"])),
        Proxy("sglang-router", "sglang-router", _rust([_bin("sglang-router", "smg"), "launch"])),
        Proxy("vllm-router", "vllm-router", _rust([_bin("vllm-router", "vllm-router")])),
        Proxy(
            "litellm",
            "LiteLLM proxy",
            _litellm,
            _litellm_config,
            # No access to the price list on the network, and open like the others.
            {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"},
            start_timeout_s=120.0,
            stream_pace={100: 2.0},
            most_streams=100,
            probes_per_s=4.0,
            note="sent 2 events a second and stream, and not measured at 1,000 streams, where its client's connection limit is reached",
        ),
    )
}

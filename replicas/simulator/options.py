"""What one simulated replica can be told, and its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from replicas.simulator.faults import Fault, parse
from replicas.simulator.presets import PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything about a replica. None: what the preset says."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    model: str = "sim-model"
    served_model_names: tuple[str, ...] = ()  # clients may use any; the first is shown in answers and metrics
    loras: tuple[str, ...] = ()
    preset: str = "h100-8b"
    speed: float = 1.0  # of time: 2 halves every step
    seed: int = 0
    kv_tokens: int | None = None
    block_size: int = 16
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_queued_reqs: int | None = None  # requests in flight beyond which 503 is answered
    max_model_len: int = 32_768
    text_bytes: int = 4  # per token
    output_tokens: int = 128  # natural length of an answer, on average
    stream_interval: int = 1  # tokens per streamed chunk
    embedding_size: int = 64
    api_keys: tuple[str, ...] = ()
    prompt_tokens_details: bool = True
    request_id_headers: bool = False
    load_tracking: bool = False
    dev_mode: bool = True
    keep_alive_s: float = 5.0
    shutdown_timeout_s: float = 0.0
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset: {self.preset!r} is not one of {', '.join(PRESETS)}")
        for name in ("speed", "block_size", "max_model_len", "output_tokens", "stream_interval"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0")
        if not 2 <= self.text_bytes <= 6:
            raise ValueError("text_bytes: must be 2 to 6")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the base model."""
        return self.served_model_names or (self.model,)


def parser() -> argparse.ArgumentParser:
    """The command line. Names are vLLM's where vLLM has the option."""
    out = argparse.ArgumentParser(prog="kvgate simulate", description="One simulated replica with vLLM's HTTP API.")
    add = out.add_argument
    default = {field.name: field.default for field in fields(Options)}
    for name, kind, text in (
        ("host", str, "address to listen on"),
        ("port", int, "port to listen on; 0 takes a free one"),
        ("model", str, "name of the model"),
        ("speed", float, "time scale: 2 halves every step"),
        ("seed", int, "of generated text and of faults"),
        ("kv_tokens", int, "KV cache in tokens"),
        ("block_size", int, "tokens per KV block"),
        ("max_num_seqs", int, "batch slots"),
        ("max_num_batched_tokens", int, "token budget of a step"),
        ("max_num_queued_reqs", int, "requests in flight beyond which 503 is answered"),
        ("max_model_len", int, "context length"),
        ("text_bytes", int, "bytes of text per token"),
        ("output_tokens", int, "natural length of an answer, on average"),
        ("stream_interval", int, "tokens per streamed chunk"),
        ("embedding_size", int, "dimensions of an embedding"),
    ):
        add(f"--{name.replace('_', '-')}", type=kind, default=default[name], help=text)
    add("--preset", choices=list(PRESETS), default=default["preset"], help="cost of steps and size of the cache")
    add("--served-model-name", dest="served_model_names", nargs="+", default=(), help="names clients may use instead")
    add("--lora", dest="loras", action="append", default=[], metavar="NAME", help="a LoRA adapter; repeatable")
    add("--api-key", dest="api_keys", action="append", default=[], help="require this key on /v1; repeatable")
    add("--no-prompt-tokens-details", dest="prompt_tokens_details", action="store_false", help="hide cached_tokens")
    add("--enable-request-id-headers", dest="request_id_headers", action="store_true", help="send x-request-id back")
    add("--enable-server-load-tracking", dest="load_tracking", action="store_true", help="count requests in /load")
    add("--no-dev-mode", dest="dev_mode", action="store_false", help="without /sleep, /pause and the like")
    add("--keep-alive", dest="keep_alive_s", type=float, default=default["keep_alive_s"], help="seconds an idle connection lives")
    add("--shutdown-timeout", dest="shutdown_timeout_s", type=float, default=0.0, help="seconds running requests get after SIGTERM")
    add("--fault", dest="faults", action="append", type=_fault, default=[], metavar="KIND[:name=value,…]", help="a fault; repeatable")
    return out


def parse_options(argv: Sequence[str]) -> Options:
    """Options of a command line. Exits with status 2 and a message where it is wrong."""
    out = parser()
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(out.parse_args(argv)).items()
    }
    try:
        return Options(**values)
    except ValueError as error:
        out.error(str(error))


def _fault(text: str) -> Fault:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

"""vLLM on CPU: a model of no weight, two threads, and all the behaviour of the real engine."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from replicas.tiny_model import MAX_TOKENS, write
from tests.clients.fleet import HTTP
from tests.real.programs import VLLM_PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = "tiny"
BLOCK = 32
BLOCKS = 700
START_S = 300.0
ENV = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /sleep
}
FLAGS = (
    "--load-format", "dummy", "--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details",
    "--max-model-len", str(MAX_TOKENS), "--max-num-seqs", "8", "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS),
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """A running vLLM."""

    url: str
    process: subprocess.Popen[bytes]

    def total(self, name: str) -> float:
        """The sum of the samples of this name on its metrics page."""
        page = HTTP.get(f"{self.url}/metrics").text
        return sum(s.value for family in text_string_to_metric_families(page) for s in family.samples if s.name == name)


@contextmanager
def engines(count: int, folder: Path) -> Iterator[list[Engine]]:
    """Several vLLM servers, started together; their output goes to files in the folder."""
    model = write(folder / MODEL)
    with ExitStack() as stack:
        started = [_start(stack, model, folder / f"vllm-{at}.log") for at in range(count)]
        until = time.monotonic() + START_S
        for engine in started:
            while not _ready(engine):
                assert engine.process.poll() is None and time.monotonic() < until, f"vLLM does not start; see {folder}"
                time.sleep(0.5)
        yield started


def _start(stack: ExitStack, model: Path, log: Path) -> Engine:
    port = _free_port()
    command = (VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", MODEL)
    process = subprocess.Popen(
        (*command, *FLAGS, "--host", "127.0.0.1", "--port", str(port)),
        env={**os.environ, **ENV},
        stdout=stack.enter_context(log.open("wb")),
        stderr=subprocess.STDOUT,
    )
    stack.callback(_end, process)
    return Engine(f"http://127.0.0.1:{port}", process)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _ready(engine: Engine) -> bool:
    try:
        return HTTP.get(f"{engine.url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM first: a killed server would leave its engine process behind."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

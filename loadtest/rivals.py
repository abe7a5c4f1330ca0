"""Other gateways, pinned, each in a virtual environment of its own under `.venv-rivals/`. `python -m loadtest.rivals` installs them.

One environment each, because the wheels of SMG and sglang-router both install a command `smg`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / ".venv-rivals"

PINS = {
    "smg": "smg==1.13.0",
    "sglang-router": "sglang-router==0.3.2",
    "vllm-router": "vllm-router==0.1.17",
    "litellm": "litellm[proxy]==1.108.7",
}


def venv(name: str) -> Path:
    """Folder of a rival's virtual environment."""
    return ROOT / name


def installed(name: str) -> bool:
    """Whether the pinned version is there."""
    return _stamp(name).is_file() and _stamp(name).read_text() == PINS[name]


def install(name: str) -> None:
    """Makes the environment anew. Raises subprocess.CalledProcessError."""
    python = venv(name) / "bin" / "python"
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv(name)))
        _run(uv, "pip", "install", "--quiet", "--python", str(python), PINS[name])
    else:
        _run(sys.executable, "-m", "venv", "--clear", str(venv(name)))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PINS[name])
    _stamp(name).write_text(PINS[name])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.rivals", description="Install the gateways that benchmarks compare with")
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(PINS)}")
    names = parser.parse_args(argv).names or list(PINS)
    unknown = [name for name in names if name not in PINS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(PINS)}")
    for name in names:
        if installed(name):
            print(f"{PINS[name]}: already there")
            continue
        print(f"{PINS[name]}: installing into {venv(name)}", flush=True)
        install(name)


def _stamp(name: str) -> Path:
    return venv(name) / "pinned.txt"


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()

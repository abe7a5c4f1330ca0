"""Starting our own gateway the way a user does: the installed command and a configuration file (JSON, which is YAML)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COMPILED = Path(__file__).resolve().parents[1] / ".venv-fast" / "bin" / "kvgate"  # made by `make fast`


def program() -> str:
    """The gateway to measure: the compiled one where it was built, else the one beside this interpreter."""
    return str(_COMPILED if _COMPILED.is_file() else Path(sys.executable).with_name("kvgate"))


def build() -> str:
    """What that program says of itself: version, and whether it is compiled."""
    return subprocess.run([program(), "--version"], check=True, capture_output=True, text=True).stdout.strip()


def command(config: Path) -> list[str]:
    """The command line that serves `config`."""
    return [program(), "serve", "-c", str(config)]


def configuration(model: str, urls: Sequence[str], *, port: int, admin_port: int, **sections: Mapping[str, Any]) -> str:
    """Text of a file with one model on the replicas at `urls`; everything not named in `sections` stays at its default."""
    replicas = [{"id": f"r{number}", "url": url} for number, url in enumerate(urls, 1)]
    server = {"host": "127.0.0.1", "port": port, "admin": {"host": "127.0.0.1", "port": admin_port}}
    return json.dumps({"server": server, "models": [{"name": model, "replicas": replicas}], **sections}, indent=1)

"""Where the real programs are, when they are here at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE_CLIENT = Path(__file__).with_name("node")
PROMTOOL = ROOT / "build" / "promtool"
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
VLLM_INSTALLED = ROOT / ".venv-vllm" / ".installed"


def need(name: str, part: str, *files: Path) -> pytest.MarkDecorator:
    """Skips tests while a program on the path (`name`, "" for none) or one of these files is missing; `part` installs it."""
    missing = [str(file.relative_to(ROOT)) for file in files if not file.exists()]
    if name and shutil.which(name) is None:
        missing.append(name)
    return pytest.mark.skipif(bool(missing), reason=f"missing: {', '.join(missing)}; .ci/install-real {part} tells why")

"""Build hook of the wheel: compiles the modules every request runs through with mypyc, where there is a C compiler.

The same source runs interpreted, only slower. So nothing here may fail a build: without a compiler or Python's headers, with
KVGATE_PURE=1, or when the compilation goes wrong, the wheel holds the source alone. Work is done on a copy, so that neither C files nor
libraries appear beside the source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_TOOLS = ["mypy>=1.19,<3", "setuptools>=75"]
_LONGEST_S = 1200
# Cold imports need no types here: what a library returns is checked at run time where it is used.
_FLAGS = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="kvgate", packages=[], ext_modules=mypycify({paths}, opt_level="{level}", debug_level="0", multi_file=True, group_name="kvgate"))
"""


class CompilingHook(BuildHookInterface[Any]):
    """`modules` in the hook's configuration are glob patterns below the project's root; `level` is the compiler's -O."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What a build needs beside hatchling."""
        return _TOOLS if _able() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to a wheel that is to hold them."""
        if version == "editable" or not _able():
            return
        self._folder = tempfile.TemporaryDirectory(prefix="kvgate-build-")
        folder = Path(self._folder.name)
        try:
            libraries = self._compile(folder)
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"not compiled, the wheel is pure Python: {error}\n{getattr(error, 'stderr', '') or ''}")
            return
        build_data["force_include"].update({str(library): library.relative_to(folder).as_posix() for library in libraries})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        if self._folder is not None:
            self._folder.cleanup()

    def _compile(self, folder: Path) -> list[Path]:
        root = Path(self.root)
        shutil.copytree(root / "gateway", folder / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
        paths = sorted({str(path.relative_to(folder)) for pattern in self.config["modules"] for path in folder.glob(pattern)})
        script = folder / "setup.py"
        script.write_text(_SETUP.format(paths=[*_FLAGS, *paths], level=self.config["level"]))
        command = [sys.executable, script.name, "--quiet", "build_ext", "--inplace", f"--parallel={os.cpu_count() or 1}"]
        self.app.display_waiting(f"compiling {len(paths)} modules (KVGATE_PURE=1 goes without)")
        subprocess.run(command, cwd=folder, check=True, timeout=_LONGEST_S, capture_output=True, text=True)  # noqa: S603  # our own
        return sorted(folder.glob("*.so")) + sorted(folder.glob("gateway/**/*.so"))


def _able() -> bool:
    """Can C extensions be built here, and are they wanted?"""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return os.environ.get("KVGATE_PURE", "0") in ("", "0") and shutil.which(compiler) is not None and header.is_file()

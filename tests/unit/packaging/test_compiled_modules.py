"""The list of modules that wheels hold in compiled form."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
LISTED = {path for pattern in HOOK["modules"] for path in ROOT.glob(pattern)}


def classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def names_of(bases: list[ast.expr]) -> set[str]:
    return {ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in bases}


def test_every_pattern_names_a_module() -> None:
    """A module that was renamed must not fall out of the compiled set unnoticed."""
    assert [pattern for pattern in HOOK["modules"] if not any(ROOT.glob(pattern))] == []


def test_no_listed_module_defines_a_struct() -> None:
    """The compiler would drop the options of a msgspec struct, such as `frozen`."""
    assert {path.name for path in LISTED if any("Struct" in names_of(c.bases) for c in classes(path))} == set()


def test_nothing_interpreted_derives_from_a_compiled_class() -> None:
    """Python refuses it when the module is imported, but only where it is compiled."""
    compiled = {c.name for path in LISTED for c in classes(path) if names_of(c.bases).isdisjoint({"NamedTuple", "Protocol"})}
    interpreted = set(ROOT.glob("gateway/**/*.py")) - LISTED
    assert {(path.name, c.name) for path in interpreted for c in classes(path) if names_of(c.bases) & compiled} == set()


def test_defaults_of_listed_classes_are_plain_constants() -> None:
    """Of other defaults the compiler only warns; the attribute would then be missing from every instance."""
    odd = [
        f"{path.name}: {ast.unparse(statement)}"
        for path in LISTED
        for c in classes(path)
        if not c.decorator_list and "NamedTuple" not in names_of(c.bases)
        for statement in c.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and "__slots__" not in ast.unparse(statement)
        if statement.value is not None and not isinstance(statement.value, ast.Constant | ast.UnaryOp | ast.Tuple)
    ]
    assert odd == []

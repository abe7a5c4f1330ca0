"""What is wrong with a settings file."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault: where it is, and what is allowed there. Line 0: not from a line of a file (the command line)."""

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.field}: {self.message}"


class SettingsError(Exception):
    """Settings that cannot be used, with every fault found."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults

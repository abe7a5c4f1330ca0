"""The manual lists exactly the metrics and log fields there are."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.telemetry import ExchangeRecord
from tests.unit.telemetry.test_metrics_exposition import busy

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
APP = (ROOT / "gateway" / "app.py").read_text()  # adds gauges of the running gateway


def test_the_manual_lists_every_metric_with_type_and_labels() -> None:
    """And none that does not exist."""
    rows = re.findall(r"^\| `(kvgate_\w+)` \| (\w+) \| (.*?) \|", PAGE, re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    families = busy().collector.families()
    actual = {f.name + ("_total" if f.kind == "counter" else ""): (f.kind, f.labels) for f in families}
    wired = {name: documented.pop(name) for name in documented.keys() - actual.keys()}
    assert documented == actual
    assert set(wired.values()) == {("gauge", ())}
    assert [name for name in wired if f'Gauge("{name}"' not in APP] == []
    assert [name for name in re.findall(r'Gauge\(\s*"(\w+)"', APP) if name not in wired] == []


def test_the_manual_lists_every_field_of_a_request_line() -> None:
    """In the table of fields."""
    table = PAGE.partition("| field | is |")[2]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == sorted(
        ExchangeRecord.__struct_fields__, key=lambda name: table.index(f"`{name}`")
    )

"""What the manual says can be followed: links, commands, configuration, tables of codes and states, the example of an engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
import typer
import yaml

from gateway.cli import app
from gateway.engines import Evidence, parse, read_models
from gateway.fleet import STATES
from gateway.openai.errors import ERRORS
from gateway.settings import load
from replicas.simulator.faults import Fault, Kind
from replicas.simulator.faults import parse as parse_fault
from replicas.simulator.options import parser
from replicas.simulator.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^( *)```(.*?)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def each_page() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)


def blocks(page: Path, kind: str) -> list[str]:
    """The code blocks of exactly this kind, without the indentation of the list they may stand in."""
    return [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        for indent, info, text in BLOCK.findall(page.read_text())
        if info.strip() == kind
    ]


def table(page: str, name: str) -> list[list[str]]:
    """The cells of the rows between `<!-- name: begin -->` and its end, quotes removed."""
    text = (ROOT / "docs" / page).read_text().partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in text.strip().splitlines()[2:]]


def anchors(page: Path) -> set[str]:
    """The names under which its headings can be linked to."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands() -> dict[str, set[str]]:
    """Every command with its options, from the programs themselves."""
    group: Any = typer.main.get_command(app)
    known = {
        name: {option for p in command.params for option in p.opts if option.startswith("-")} for name, command in group.commands.items()
    }
    known["simulate"] = {option for action in parser()._actions for option in action.option_strings}
    return {name: options | {"--help"} for name, options in known.items()} | {"": {"--version", "--help"}}


def invocations(page: Path) -> Iterator[list[str]]:
    """The words after each `kvgate` in code, be it inline or in a block."""
    text = page.read_text()
    code = [line for _, info, body in BLOCK.findall(text) if info.strip() in ("", "sh", "ini") for line in body.splitlines()]
    code += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", BLOCK.sub("", text))
    for line in code:
        for found in re.finditer(r"(?:^|[\s/$])kvgate ([^|#&;]*)", line):
            yield found[1].split()


@each_page()
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to one of its headings."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if ":" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert broken == []


@each_page()
def test_commands_and_options_exist(page: Path) -> None:
    """Every `kvgate COMMAND --option` can be typed as it is written."""
    known = commands()
    wrong = []
    for words in invocations(page):
        name = words[0] if words and re.fullmatch(r"[a-z]+", words[0]) else ""
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        wrong += [f"kvgate {name}"] if name not in known else [f"kvgate {name} {o}" for o in options - known[name]]
    assert wrong == []


def test_the_manual_of_the_simulator_has_every_option_and_fault() -> None:
    """And only those there are; every example of a fault is one."""
    options = [option for row in table("simulator.md", "options") for option in re.findall(r"--[a-z-]+", row[0])]
    assert sorted(options) == sorted(o for o in commands()["simulate"] if o.startswith("--") and o != "--help")
    kinds = [kind for row in table("simulator.md", "faults") for kind in re.findall(r"\w+", row[0])]
    assert sorted(kinds) == sorted(get_args(Kind))
    assert {row[0] for row in table("simulator.md", "parameters")} <= set(Fault.__struct_fields__)
    for text in re.findall(r"--fault ([a-z0-9_]+(?::\S+)?)", (ROOT / "docs" / "simulator.md").read_text()):
        assert parse_fault(text).kind in kinds


def test_the_table_of_presets_is_that_of_the_program() -> None:
    """Costs in milliseconds and tokens per second, sizes in tokens."""

    def number(cell: str) -> float:
        found = re.match(r"[\d.,]+", cell)
        return float(found[0].replace(",", "")) if found else 0.0

    shown = {name: [number(cell) for cell in cells] for name, *cells in table("simulator.md", "presets")}
    actual = {}
    for name, preset in PRESETS.items():
        cost = preset.cost
        rate = 1 / cost.prefill_token_s if cost.prefill_token_s else 0.0
        times = [cost.step_s * 1e3, rate, cost.sequence_s * 1e3, cost.context_token_s * 1e6]
        actual[name] = pytest.approx([*times, preset.kv_tokens, preset.max_num_seqs, preset.max_num_batched_tokens])
    assert shown == actual


@each_page()
def test_configuration_examples_load(page: Path, tmp_path: Path) -> None:
    """As they stand, or with a model where an example shows only another section."""
    for number, text in enumerate(blocks(page, "yaml")):
        file = tmp_path / f"{number}.yaml"
        given = yaml.safe_load(text)
        file.write_text(text if "models" in given else text + "models: [{name: m, replicas: [{url: 'http://127.0.0.1:8000'}]}]\n")
        assert load(file, env=dict.fromkeys(re.findall(r"\$\{(\w+)", text), "secret")).models


def test_the_table_of_errors_is_that_of_the_program() -> None:
    """Every code, its status, and whether clients should try again."""
    shown = {code: (int(status), {"true": True, "false": False, "": None}[retry]) for status, code, retry, _ in table("http.md", "errors")}
    assert shown == {code: (status, retry) for code, (status, _, retry) in ERRORS.items()}


def test_the_table_of_states_is_that_of_the_program() -> None:
    """What an operator may see is explained."""
    assert sorted(row[0] for row in table("operations.md", "states")) == sorted(STATES)


def test_the_example_of_an_engine_works() -> None:
    """It recognises its server, and reads load and cache from its metrics."""
    scope: dict[str, Any] = {}
    exec(compile(blocks(ROOT / "docs" / "engines.md", "python")[0], "docs/engines.md", "exec", dont_inherit=True), scope)
    engine = scope["LLAMACPP"]
    assert engine.recognises(Evidence(models=read_models(b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}')))
    assert not engine.recognises(Evidence(models=read_models(b'{"data": [{"id": "m", "owned_by": "vllm"}]}')))
    names = ("requests_processing 4", "requests_deferred 2", "prompt_tokens_total 20144", "prompt_tokens_cached_total 51230")
    signals = engine.signals(parse("\n".join(f"llamacpp:{line}" for line in names).encode(), engine.families), None)
    assert (signals.running, signals.waiting, signals.prefix_queries, signals.prefix_hits) == (4, 2, 71374, 51230)
    assert engine.signals(parse(b"", engine.families), None).prefix_queries is None
    assert [engine.health(status, b"") for status in (200, 503, 500)] == ["up", "starting", "down"]

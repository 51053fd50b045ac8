"""Verdicts in every format: gold files, and texts that try to break out of them."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from cgtool.analysis.gate.budgets import Budgets, from_options
from cgtool.analysis.gate.judge import (
    ERROR,
    GateReport,
    Judged,
    exit_code,
    gate_report,
    judge,
    not_measured,
)
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN, Verdict, number
from cgtool.model.capture import Frame
from cgtool.model.capture_file import read
from cgtool.model.failure import Failure
from cgtool.model.files import encodable
from cgtool.model.finding import Finding
from cgtool.render import gate_formats, gate_table
from cgtool.render.json import encode
from cgtool.render.text import visible
from tests.builders import HOSTILE_NAMES, capture
from tests.gold_files import GOLD, check

CAPTURES = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"
ROOT = Path.cwd()
replace = msgspec.structs.replace

texts = st.one_of(
    st.sampled_from(HOSTILE_NAMES), st.text(max_size=40), st.text("\x00\t\r\n,:%|<&]>")
)


def recorded() -> GateReport:
    """A capture of an H200 that fails, one of the simulated device that is undecided."""
    bench = measure([read(CAPTURES / "mlp-bench.cgt")])
    before = measure([read(CAPTURES / "mlp.cgt")]).values
    before = replace(
        before,
        counts={**before.counts, "nodes": 22, "pool-mib": 70.0},
        ops={**before.ops, "mm": 3},
        samples=bench.values.samples,
        environment=replace(before.environment, torch="2.10.0+cu130"),
    )
    held = from_options(
        {
            "max-nodes": ["400"],
            "max-pool-mib": ["64"],
            "max-findings": ["0"],
            "min-speedup": ["4", "forward=2.8"],
        }
    )
    source = "/home/me/pyproject.toml: [tool.cgtool.gate] max-pool-mib"
    held = replace(
        held,
        limits=tuple(
            replace(limit, source=source) if limit.metric == "pool-mib" else limit
            for limit in held.limits
        ),
    )
    simulated = measure([read(GOLD / "captures" / "mlp-separate-simulated.cgt")])
    return gate_report(
        (
            judge(bench, held, before, files=("mlp-bench.cgt",), baseline_file="mlp.json"),
            judge(
                simulated,
                from_options({"max-nodes": ["17"], "max-kernels": ["9"]}),
                files=("mlp-simulated.cgt",),
            ),
        )
    )


def report_of(verdict: Verdict, **fields: object) -> GateReport:
    """A report of one verdict."""
    judged = Judged(
        "model.py:build", "NVIDIA H200", False, "2.13.0", (), None, (verdict,), (), {}, {}
    )
    return gate_report((replace(judged, **fields),))


def failing(text: str = "2 over", **fields: object) -> Verdict:
    return replace(
        Verdict("nodes", "", FAIL, "at most 3", "--max-nodes", text, 5.0, limit=3.0), **fields
    )


# --- gold files


@pytest.mark.parametrize("width", [80, 160])
def test_table(width: int) -> None:
    buffer = StringIO()
    Console(file=buffer, width=width, color_system=None, highlight=False).print(
        gate_table.render(recorded())
    )
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    assert max(map(len, text.splitlines())) <= width
    check(f"gate/table-{width}.txt", text)


@pytest.mark.parametrize("width", [80])
def test_table_of_targets_without_budgets(width: int) -> None:
    buffer = StringIO()
    report = gate_report((judge(measure([read(CAPTURES / "mlp.cgt")]), Budgets()),))
    Console(file=buffer, width=width, color_system=None).print(gate_table.render(report))
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    check(f"gate/figures-{width}.txt", text)


def test_json() -> None:
    check("gate/report.json", encode("cgtool-gate", recorded()).decode())


def test_junit() -> None:
    check("gate/report.xml", gate_formats.junit(recorded()).decode())


def test_github_commands() -> None:
    check("gate/commands.txt", gate_formats.github_commands(recorded(), ROOT))


def test_github_summary() -> None:
    check("gate/summary.md", gate_formats.github_summary(recorded(), gate_formats.MOST_BYTES))


def test_benchmark_action() -> None:
    check("gate/benchmark-action.json", gate_formats.benchmark_action(recorded()).decode())


# --- JUnit


def parsed(report: GateReport) -> ET.Element:
    return ET.fromstring(gate_formats.junit(report))


def test_junit_counts_what_it_holds() -> None:
    root = parsed(recorded())
    cases = root.findall(".//testcase")
    assert (
        int(root.get("tests", ""))
        == len(cases)
        == sum(len(target.verdicts) for target in recorded().targets)
    )
    assert int(root.get("failures", "")) == len(root.findall(".//failure")) > 0
    assert int(root.get("skipped", "")) == len(root.findall(".//skipped")) > 0
    for suite in root:
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
    names = [(case.get("classname"), case.get("name")) for case in cases]
    assert not [name for _, name in names if re.search(r"\d", name or "")]
    assert len(set(names)) == len(names)


@given(texts, texts)
def test_junit_holds_any_text_and_what_does_not_print_as_escapes(text: str, name: str) -> None:
    report = report_of(failing(text, metric=name, evidence=(text,)), entry=name, device=text)
    data = gate_formats.junit(report).decode()
    assert all(character.isprintable() or character == "\n" for character in data)
    case = parsed(report).find(".//testcase")
    assert case is not None
    assert case.get("classname") == visible(name)
    failure = case.find("failure")
    assert failure is not None
    message = failure.get("message") or ""
    assert message.endswith(f"at most 3: {visible(text)}" if text else "at most 3")
    assert failure.text == f"{message}\n{visible(text)}"
    assert parsed(report).find(".//property[@name='device']").get("value") == visible(text)


# --- GitHub


def read_command(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as GitHub's runner reads it (actions/runner, ActionCommand.cs)."""
    assert line.startswith("::")
    head, _, data = line[2:].partition("::")
    kind, _, properties = head.partition(" ")

    def plain(text: str, *more: tuple[str, str]) -> str:
        for escape, character in (("%0D", "\r"), ("%0A", "\n"), *more, ("%25", "%")):
            text = text.replace(escape, character)
        return text

    values = {}
    for pair in properties.split(",") if properties else ():
        name, _, value = pair.partition("=")
        values[name] = plain(value, ("%3A", ":"), ("%2C", ","))
    return kind, values, plain(data)


@given(texts, texts)
def test_a_command_is_one_line_and_reads_back(text: str, name: str) -> None:
    frame = Frame(name or "model.py", 12, "f")
    verdict = failing(text, metric=name, evidence=(text,), frame=frame)
    written = gate_formats.github_commands(report_of(verdict, entry=text), Path("/nowhere"))
    lines = written.split("\n")
    assert (len(lines), lines[1]) == (2, "")
    assert "\r" not in lines[0]
    kind, properties, message = read_command(lines[0])
    assert kind == "error"
    shown, named, file = map(visible, (text, name, frame.file))
    assert properties["title"] == f"{shown}: {named} fail"
    assert (properties["file"], properties["line"]) == (file, "12")
    assert message.endswith(f": {shown}\n{shown}" if text else "at most 3\n")
    # What a terminal would act on is not in it.
    assert lines[0].isprintable()


@given(texts, texts)
def test_an_error_of_any_text_is_reported_and_escaped(text: str, name: str) -> None:
    frames = (Frame("", 0, text), Frame(name or "model.py", 7, text))
    error = Failure(text, 4, frames, why=text or None, findings=(Finding("sync-item", text),))
    report = gate_report((not_measured(name, error, ()), *report_of(failing()).targets))
    assert (report.verdict, exit_code(report)) == (ERROR, 4)
    findings = parsed(report).find(".//testcase[@line='7']/error")
    assert findings is not None
    assert findings.get("message") == visible(text)
    assert (findings.text or "").endswith("code: sync-item (cgtool explain sync-item)")
    first, second, end = gate_formats.github_commands(report, Path("/nowhere")).split("\n")
    kind, properties, message = read_command(first)
    assert (kind, properties["line"], end) == ("error", "7", "")
    assert properties["title"] == visible(f"{name} not measured")
    assert message.startswith(visible(text))
    assert second.startswith("::error ")
    assert all(line.isprintable() for line in (first, second))
    json.loads(encode("cgtool-gate", encodable(msgspec.to_builtins(report))))


def test_files_are_named_from_the_top_of_the_checkout(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for name, shown in (
        ("model.py", "sub/model.py"),
        (f"{tmp_path}/a.py", "a.py"),
        ("../a.py", "a.py"),
        ("/usr/lib/a.py", "/usr/lib/a.py"),
    ):
        verdict = failing(frame=Frame(name, 3, "f"))
        _, properties, _ = read_command(
            gate_formats.github_commands(report_of(verdict), tmp_path).strip()
        )
        assert properties["file"] == shown


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 60])
def test_ten_annotations_of_a_kind_and_the_last_says_how_many_more(count: int) -> None:
    failed = tuple(failing(f"text {at}") for at in range(count))
    doubtful = tuple(failing(f"text {at}", verdict=UNKNOWN) for at in range(count))
    report = report_of(failing(), verdicts=(*failed, *doubtful, failing(verdict=PASS)))
    lines = gate_formats.github_commands(report, ROOT).splitlines()
    for kind in ("error", "warning"):
        mine = [line for line in lines if line.startswith(f"::{kind} ")]
        assert len(mine) == min(count, 10)
        if count > 10:
            assert mine[0].endswith("text 0")
            assert mine[-1].endswith(f"::{count - 9} more: see the job summary")
    assert len(lines) == 2 * min(count, 10)


def test_a_summary_is_cut_where_github_would_refuse_it() -> None:
    long = tuple(failing("é" * 300, evidence=("evidence " * 40,)) for _ in range(6000))
    text = gate_formats.github_summary(report_of(failing(), verdicts=long), gate_formats.MOST_BYTES)
    assert 1023 << 10 < len(text.encode()) <= 1024 << 10
    assert text.endswith("\n_Truncated: GitHub rejects longer summaries._\n")
    assert gate_formats.cut_lines("short", 90) == "short"
    assert len(gate_formats.cut_lines("x\n" * 100, 90).encode()) <= 90
    assert gate_formats.cut_lines("x" * 100, 10) == gate_formats.cut_lines("x" * 100, -5) == ""


def read_markdown(text: str) -> tuple[list[str], list[str]]:
    """The blocks, and the text in them, as a reader of Markdown with tables has it."""
    blocks, texts = [], []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        blocks.append(token.type)
        if token.type == "inline":
            inside = [
                child for child in token.children or () if not child.type.startswith("strong")
            ]
            assert {child.type for child in inside} <= {"text"}, token
            texts.append("".join(child.content for child in inside))
    return blocks, texts


markup = st.sampled_from(
    [
        "- item", "+ item", "1. item", "12) item", "=", "---", "# head", "    code", "\tcode",
        "> quote", "```", "~~~", "a\\", "\\|", "a | b", "![x](y)", "<b>", "&lt;", "<!-- -->",
        "https://a.b", "www.a.b", "$x$", "~~a~~", "[a]: b", "**", "a  ", "-", "1.", "(c) \x9b31m",
    ]
)  # fmt: skip


named = (texts | markup).filter(lambda text: text.strip(" "))


def summary_of(name: str, text: str) -> str:
    verdict = failing(text, evidence=(text,))
    return gate_formats.github_summary(
        report_of(verdict, entry=name, device=text, baseline=text, notes=(text,)),
        gate_formats.MOST_BYTES,
    )


@given(named, named)
def test_text_in_a_summary_is_text(name: str, text: str) -> None:
    """Whatever a name holds, the blocks are the same, and it reads back where it belongs."""
    blocks, shown_texts = read_markdown(summary_of(name, text))
    expected, plain = read_markdown(summary_of("NAME", "TEXT"))
    assert [block for block in blocks if block != "inline"] == [
        block for block in expected if block != "inline"
    ]
    for shown, words in zip(shown_texts, plain, strict=True):
        written = words.replace("NAME", visible(name)).replace("TEXT", visible(text))
        assert shown.strip() == written.strip()


@pytest.mark.parametrize("address", ["https://a.b/c", "WWW.a.b", "ftp://a"])
def test_an_address_in_a_summary_is_not_a_link(address: str) -> None:
    """GitHub makes links of bare addresses; an escape in one keeps it text."""
    assert address not in gate_formats.cell(address)
    assert read_markdown(gate_formats.cell(address))[1] == [address]


# --- the rest


@given(texts, texts)
def test_every_format_takes_any_name(text: str, name: str) -> None:
    verdict = failing(text, metric=name, evidence=(name, text), source=text)
    report = report_of(verdict, entry=text, device=name, notes=(text,), figures={"nodes": 5.0})
    Console(file=StringIO(), width=80).print(gate_table.render(report))
    data = gate_formats.benchmark_action(report)
    assert all(character.isprintable() or character == "\n" for character in data.decode())
    (row,) = json.loads(data)
    assert (row["name"], row["value"]) == (f"{visible(text)} nodes", 5.0)
    gate_formats.github_summary(report, gate_formats.MOST_BYTES).encode()


def test_what_is_better_when_larger_is_not_for_smaller_is_better() -> None:
    rows = json.loads(gate_formats.benchmark_action(recorded()))
    names = [row["name"] for row in rows]
    assert "samples/mlp.py:build (mlp-bench.cgt) replay-us" in names
    assert not any("speedup" in name for name in names)
    assert all(isinstance(row["value"], int | float) for row in rows)


def test_numbers() -> None:
    shown = [number(0), number(1234567), number(0.5, "MiB"), number(73.2136, "us")]
    assert shown == ["0", "1,234,567", "0.5 MiB", "73.21 us"]
    assert [number(2.9333, "x"), number(123456.7, "us"), number(1e300)] == [
        "2.933x", "123,457 us", number(1e300),
    ]  # fmt: skip


def test_an_empty_report() -> None:
    report = gate_report(())
    assert parsed(report).get("tests") == "0"
    assert gate_formats.github_commands(report, ROOT) == ""
    assert gate_formats.benchmark_action(report) == b"[]\n"
    empty = gate_report((judge(measure([capture([])]), Budgets()),))
    assert parsed(empty).find("testsuite") is not None

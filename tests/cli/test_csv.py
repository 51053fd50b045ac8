"""``--format csv`` of every command that prints tables, and ``--table``."""

from __future__ import annotations

import csv
import json
from functools import partial
from io import StringIO

import pytest

from cgtool.analysis.ledger_report import ledger_report
from cgtool.analysis.timing.bench import bench_report
from cgtool.analysis.timing.profile import profile_report
from cgtool.analysis.timing.time_tables import BY
from cgtool.model import capture_file
from cgtool.render import annotate_table, bench_table, ledger_table, profile_table
from cgtool.render.csv import encode_tables
from cgtool.render.table import Column, Table
from tests.builders import hostile, timed, timed_serving
from tests.cli.test_check import MANY
from tests.recorded import ROOT
from tests.render.test_annotate_table import report as annotate_report

SAMPLES = ROOT / "samples" / "captures"
MLP, TRANSFORMER = SAMPLES / "mlp.cgt", SAMPLES / "transformer.cgt"
PROFILE = SAMPLES / "profile-transformer.cgt"


def read(text):
    return list(csv.DictReader(StringIO(text)))


@pytest.fixture
def run(cgtool):
    def run(*arguments):
        """What the command wrote as CSV, and on standard error."""
        code, out, error = cgtool(*arguments, "--format", "csv")
        assert code in (0, 1), error
        return read(out), error

    return run


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The saved run of a program."""
    monkeypatch.setattr(capture_file, "read", lambda path: timed_serving())
    (tmp_path / "run.cgt").touch()
    return tmp_path / "run.cgt"


def test_sizes_are_bytes(run, cgtool):
    (row,), _ = run("pools", TRANSFORMER)
    (expected,) = json.loads(cgtool("pools", TRANSFORMER, "--format", "json")[1])["pools"]
    assert row["pool"] == expected["name"]
    assert int(row["reserved (bytes)"]) == expected["reserved_bytes"]
    assert run("pools", TRANSFORMER, "--exact")[0] == [row]


def test_times_are_nanoseconds_and_shares_fractions(run):
    rows, _ = run("profile", PROFILE, "--by", "op")
    of_op = [
        node.duration_ns
        for graph in capture_file.read(PROFILE).graphs
        for node in graph.nodes
        if node.kernel is not None
    ]
    assert sum(float(row["time (ns)"]) for row in rows) >= sum(of_op)
    assert 0.9 < sum(float(row["share"]) for row in rows) <= 1


def test_all_rows_and_columns_are_written(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows, _ = run("profile", PROFILE, "--by", "node")
    assert len(rows) == 190
    assert all(row["line"] and row["kernel"] for row in rows if row["bound"])
    rows, error = run("pools", TRANSFORMER, "--table", "live-blocks")
    assert len(rows) > 12
    assert error == ""
    rows, _ = run("diff", TRANSFORMER, MLP, "--table", "changes", "--rows", "1")
    assert {(row["graph"], row["status"]) for row in rows} >= {
        ("forward", "added"),
        ("backward", "removed"),
    }


def test_the_first_table_is_written_and_the_others_are_named(run, cgtool):
    rows, error = run("profile", PROFILE)
    assert [row["graph"] for row in rows] == ["forward", "backward", "together"]
    assert error.startswith(
        "wrote the table replays; others: --table by-line, by-module, by-op, by-kernel, "
    )
    assert (
        run("profile", PROFILE, "--table", "by-op")[0] == run("profile", PROFILE, "--by", "op")[0]
    )
    code, out, error = cgtool("profile", PROFILE, "--table", "x", "--format", "csv")
    assert (code, out) == (2, "")
    assert error.startswith("cgtool: there is no table x\n  fix: --table replays, by-line, ")


def test_one_table_on_the_screen(cgtool):
    out = cgtool("profile", PROFILE, "--table", "gaps")[1]
    assert out.splitlines()[0].strip() == "Gaps between nodes"
    assert len(out.splitlines()) == 5
    code, _, error = cgtool("profile", PROFILE, "--table", "gaps", "--format", "json")
    assert code == 2
    assert "--table does not apply to JSON" in error


def test_a_table_without_rows_has_its_headings(cgtool):
    done = cgtool("diff", MLP, MLP, "--table", "modules", "--format", "csv")
    assert done == (0, "module,A,B,removed,added,changed,moved\n", "")


def test_a_program(run, served, tmp_path):
    lines, _ = run("run", served)
    graphs, _ = run("run", served, "--graphs")
    assert len(graphs) > len(lines) > 1
    assert sum(int(row["replays"]) for row in lines) == sum(
        int(row["replays"] or 0) for row in graphs
    )
    assert int(lines[0]["nodes min"]) <= int(lines[0]["nodes max"])
    assert run("run", served, "--table", "findings")[0][0]["severity"] == "error"
    captures, _ = run("profile", served, "--table", "captures")
    assert len(captures) == len(lines)


def test_verdicts_of_all_targets(run, cgtool, tmp_path):
    budget = ("--max-nodes", "40")
    rows, _ = run("gate", TRANSFORMER, MLP, *budget)
    named = [(row["measured"], row["measured unit"], row["verdict"], row["why"]) for row in rows]
    assert named == [("190", "", "fail", "150 over"), ("25", "", "pass", "")]
    place = tmp_path / "gate.csv"
    cgtool("gate", TRANSFORMER, MLP, *budget, "--format", "table", "--format", f"csv={place}")
    assert read(place.read_text()) == rows


def test_findings_and_comparisons(run, tmp_path):
    (tmp_path / "m.py").write_text(MANY)
    findings, error = run("check", tmp_path / "m.py:build", "--device", "simulated")
    assert ("sync-item", "3") in [(finding["code"], finding["line"]) for finding in findings]
    assert error == ""
    rows, error = run("verify", ROOT / "samples" / "mlp.py:build", "--device", "simulated", "-q")
    assert {row["verdict"] for row in rows} == {"bit-identical"}


def test_a_capture(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = ROOT / "samples" / "transformer.py:build"
    # Without progress and summary, the CSV is still what was requested.
    ops, _ = run("capture", entry, "--device", "simulated", "--table", "ops", "-q")
    (recorded,) = {len(capture_file.read(file).graphs) for file in tmp_path.glob("*.cgt")}
    assert recorded == 2
    assert len(ops) > 8


def test_overloads_are_one_op(run, tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\n"
        "def build(device):\n"
        "    f = lambda x: torch.ops.aten.mul.Scalar(x * x, 2).pow(2)\n"
        "    return f, (torch.ones(4, device=device),)\n"
    )
    options = ("--device", "simulated", "--table", "ops", "-q", "-o", tmp_path / "m.cgt")
    ops, _ = run("capture", tmp_path / "m.py:build", *options)
    assert [(row["op"], row["nodes"]) for row in ops] == [("mul", "2"), ("pow", "1")]


def by_profile(by):
    return profile_table.render(profile_report(capture_file.read(PROFILE), by=by), overview=False)


@pytest.mark.parametrize(
    "screen",
    [
        lambda: bench_table.render(bench_report(capture_file.read(SAMPLES / "mlp-bench.cgt"))),
        lambda: annotate_table.render(annotate_report(range(8))),
        lambda: ledger_table.render(ledger_report(timed_serving()), graphs=True),
        lambda: ledger_table.render(ledger_report(timed_serving())),
        lambda: ledger_table.render_times(ledger_report(timed_serving())),
        lambda: ledger_table.render_pools(ledger_report(timed_serving())),
        *(partial(by_profile, by) for by in BY),
    ],
)
def test_each_value_has_a_heading_of_its_own(screen):
    for table in screen().tables:
        head, *rows = csv.reader(StringIO(encode_tables([table]).decode()))
        assert "" not in head
        assert len(set(head)) == len(head)
        assert {len(row) for row in rows} <= {len(head)}, table.name


def test_nothing_runs_in_a_spreadsheet():
    columns = [Column("a", lambda row: row), Column("b", lambda row: -1)]
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\uff1d1", 'x";=1', "a,=1", "a\n=1", "x|y"]
    out = encode_tables([Table("T", columns, texts)]).decode()
    assert out.splitlines()[1:] == [
        "'=1+1,-1", "'+1,-1", "'-1,-1", "'@SUM(A1),-1", "\\t=1,-1", "'\uff1d1,-1", '"x"";=1",-1',
        '"a,=1",-1', "a\\n=1,-1", '"x|y",-1',
    ]  # fmt: skip
    assert [row["b"] for row in read(out)] == ["-1"] * len(texts)


def test_hostile_names(run, tmp_path):
    capture_file.write(tmp_path / "hostile.cgt", timed(hostile()))
    rows, _ = run("profile", tmp_path / "hostile.cgt", "--by", "node")
    assert rows
    for row in rows:
        assert None not in row
        assert all(text.isprintable() for text in row.values())

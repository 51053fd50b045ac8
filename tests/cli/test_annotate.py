"""``cgtool annotate``: what the annotated trace holds, and files that cannot be annotated."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import sqlite3
from collections import Counter
from decimal import Decimal
from functools import partial

import pytest
from msgspec import structs

from cgtool.analysis.graph.kernel_names import demangle
from cgtool.analysis.trace_match import match_launches
from cgtool.model.capture import Memory
from cgtool.model.capture_file import read, write
from cgtool.model.failure import CgtoolError
from cgtool.model.gpu_trace import read_chrome
from cgtool.model.nsight import NsightTrace
from cgtool.render.annotate_table import _names
from cgtool.render.annotated_trace import annotated, nodes
from tests.builders import program
from tests.gold_files import GOLD
from tests.recorded import ROOT, recorded
from tests.render.test_perfetto import assert_nested
from tests.traces import CATEGORIES, eager, event, nsight, replays, trace

STEP = ROOT / "samples" / "captures" / "train_step.cgt"
TRACES = GOLD / "traces"
BANDS = 900_000_000


@pytest.fixture
def written(tmp_path):
    """Writes a trace of these events into a file."""

    def written(events, name="trace.json"):
        file = tmp_path / name
        file.write_text(json.dumps(trace(events)))
        return file

    return written


def is_band(each):
    return isinstance(each["pid"], int) and each["pid"] >= BANDS


def test_every_kernel_gets_its_line(cgtool, tmp_path, written):
    before = [*eager(0), *replays(recorded("train_step"), [0, 0])]
    file, out = written(before), tmp_path / "out.json"
    code, shown, errors = cgtool("annotate", file, "--with", STEP, "-o", out)
    assert (code, errors) == (0, f"saved {out}\n")
    assert shown.startswith("110 of 110 kernels of 2 graph launches matched (100%), by order\n")
    after = json.loads(out.read_text())
    assert after["cudaGraphInlineAnnotated"] is True
    assert {key: after[key] for key in ("schemaVersion", "deviceProperties")} == {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    }
    ours = ("op", "module", "line", "forward line", "forward op", "autograd node", "ranges")
    known = Counter()
    events = [each for each in after["traceEvents"] if not is_band(each)]
    for each, old in zip(events, trace(before)["traceEvents"], strict=True):
        args = each.get("args", {})
        if "truth" in args:
            assert args.pop("node") == f"step/{args['truth'][1]}"
            assert args.pop("matched by") == "order"
            known.update(name for name in ours if args.pop(name, None))
        assert each == json.loads(json.dumps(old))
    assert known["op"] == known["line"] == 110
    step = recorded("train_step")
    origins = [step.origins[node.origin] for node in step.graphs[0].nodes]
    backward = [origin for origin in origins if origin.forward is not None]
    assert known["forward line"] == known["forward op"] == 2 * len(backward) == 18


def test_whole_numbers_may_be_floats(cgtool, tmp_path, written):
    """As tools write them that read a trace into a table."""
    events = replays(recorded("train_step"), [0, 0])
    for each in events:
        each["pid"] = float(each["pid"])
        args = each["args"]
        args["correlation"] = float(args["correlation"])
        args |= {name: [*map(float, args[name])] for name in ("grid", "block") if name in args}
    file = tmp_path / "out.json"
    code, out, _ = cgtool("annotate", written(events), "--with", STEP, "-o", file)
    assert (code, out.startswith("110 of 110 kernels of 2 graph launches")) == (0, True)
    assert "(100%), by order" in out
    assert "modules of graphs on GPU 0" in file.read_text()


def test_modules_are_slices_around_their_kernels(cgtool, tmp_path):
    out = tmp_path / "out.json"
    program = TRACES / "timm_infer"
    assert cgtool("annotate", f"{program}.json.gz", "--with", f"{program}.cgt", "-o", out)[0] == 0
    events = json.loads(out.read_text())["traceEvents"]
    bands = [each for each in events if is_band(each)]
    assert_nested(bands)
    names = {each["args"]["name"] for each in bands if each["ph"] == "M" and "name" in each["args"]}
    assert names == {"modules of graphs on GPU 0", "modules 0"}
    slices = [each for each in bands if each["ph"] == "X"]
    assert sum(each["cat"] == "graph" for each in slices) == 3
    for each in events:
        if each.get("cat") == "kernel":
            middle = each["ts"] + each["dur"] / 2
            around = [s["name"] for s in slices if s["ts"] <= middle <= s["ts"] + s["dur"]]
            assert each["args"]["module"] in around
            assert each["args"]["op"] in around


def test_replays_at_the_same_time_have_a_lane_each(cgtool, tmp_path, written):
    """Two graphs on two streams of the program."""
    events = replays(recorded("train_step"), [0, 0])
    half = len(events) // 2
    shift = events[half]["ts"] - events[0]["ts"]
    for each in events[half:]:
        each["ts"] -= shift - 3
    out = tmp_path / "out.json"
    assert cgtool("annotate", written(events), "--with", STEP, "-o", out)[0] == 0
    bands = [each for each in json.loads(out.read_text())["traceEvents"] if is_band(each)]
    assert_nested(bands)
    lanes = {each["tid"] for each in bands if each.get("cat") == "graph"}
    assert lanes == {0, 1}


def test_packed_in_and_out(cgtool, tmp_path):
    program = TRACES / "engine"
    out = tmp_path / "out.json.gz"
    code, shown, _ = cgtool(
        "annotate", f"{program}.json.gz", "--with", f"{program}.cgt", "-o", out, "--format", "json"
    )
    assert code == 0
    report = json.loads(shown)
    assert (report["schema"], report["records"], report["how"]) == (
        "cgtool-annotate",
        84,
        {"order": 84},
    )
    kernels = [
        each["args"]
        for each in json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
        if each.get("cat") in CATEGORIES.values() and "op" in each["args"]
    ]
    assert len(kernels) == 84
    assert Counter(args["op"] for args in kernels)["aten::sin"] == 4 * 3


def test_a_bare_list_of_events(cgtool, tmp_path):
    file, out = tmp_path / "events.json", tmp_path / "out.json"
    file.write_text(json.dumps(replays(recorded("train_step"), [0])))
    assert cgtool("annotate", file, "--with", STEP, "-o", out)[0] == 0
    assert json.loads(out.read_text())["traceEvents"][1]["args"]["node"] == "step/0"


def test_a_call_of_the_driver_in_the_call_of_the_runtime(cgtool, tmp_path, written):
    """They have one number."""
    events = replays(recorded("train_step"), [0])
    call = event("cuda_driver", "cuStreamGetCaptureInfo", 0, 1, 4321, 4321, events[0]["args"])
    file, out = written([*events, call]), tmp_path / "out.json"
    assert cgtool("annotate", file, "--with", STEP, "-o", out)[0] == 0


def test_launches_that_fit_no_graph(cgtool, tmp_path, written):
    """What fits is annotated all the same; the exit code says that something did not."""
    events = replays(recorded("train_step"), [0, 0])
    events[-1]["name"] = "another_kernel"
    code, shown, _ = cgtool(
        "annotate", written(events), "--with", STEP, "-o", tmp_path / "out.json"
    )
    assert code == 1
    shown = " ".join(shown.split())
    assert shown.startswith(
        "55 of 110 kernels of 2 graph launches matched (50%), by order; 55 belong to no graph"
    )
    assert "not matched 1 launch, 55 kernels: closest to `step`, but it runs 1 other" in shown
    assert shown.endswith("`cgtool run` of the traced program records all its graphs")


def test_a_capture_of_another_program(cgtool, tmp_path):
    other, out = TRACES / "timm_infer.cgt", tmp_path / "out.json"
    code, shown, _ = cgtool("annotate", TRACES / "engine.json.gz", "--with", other, "-o", out)
    assert code == 1
    end = f"if the program has changed since {other}, record it again"
    assert " ".join(shown.split()).endswith(end)


def test_the_trace_keeps_its_format(cgtool, tmp_path, written):
    step = recorded("train_step")
    database, chrome = tmp_path / "trace.sqlite", written(replays(step, [0]))
    nsight(database, replays(step, [0], ids=True), step)
    for file, name, kind in [
        (database, "out.json", "an SQLite database"),
        (chrome, "out.sqlite", "a Chrome trace"),
    ]:
        out = tmp_path / name
        code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", out)
        assert (code, out.exists()) == (2, False)
        assert f"-o {out}: {file} is {kind}, so the annotated trace is one too" in errors


def test_a_capture_without_graphs(cgtool, tmp_path, written):
    file, out = tmp_path / "run.cgt", tmp_path / "out.json"
    write(file, structs.replace(program([]), memory=Memory()))
    code, _, errors = cgtool("annotate", written(eager(0)), "--with", file, "-o", out)
    assert code == 2
    assert " ".join(errors.split()).startswith(f"cgtool: {file} has no graphs why: the program")


def test_an_export_of_nsight_systems(cgtool, tmp_path):
    step = recorded("train_step")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, [*eager(0), *replays(step, [0, 0], ids=True)], step)
    before = file.read_bytes()
    code, shown, _ = cgtool("annotate", file, "--with", STEP, "-o", out)
    assert code == 0
    assert shown.startswith("110 of 110 kernels of 2 graph launches matched (100%), by node id")
    assert "1 kernel outside graphs" in shown
    assert file.read_bytes() == before
    with sqlite3.connect(out) as database:
        ask = database.execute
        assert (
            ask("SELECT count(*), count(op), count(line) FROM CGTOOL_NODES").fetchone()
            == (len(step.graphs[0].nodes),) * 3
        )
        rows = ask("SELECT node, op, kernel, duration FROM CGTOOL_KERNELS ORDER BY start")
        kernels = [node for node in step.graphs[0].nodes if node.kernel is not None]
        assert rows.fetchone() == (None, None, "an_eager_kernel", 4)
        first = rows.fetchone()
        assert first[:2] == (f"step/{kernels[0].id}", step.origins[kernels[0].origin].op)


def test_a_disk_that_is_full_is_not_the_fault_of_the_export(cgtool, tmp_path, monkeypatch):
    step = recorded("train_step")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, replays(step, [0], ids=True), step)
    connect = sqlite3.connect

    def small_disk(*arguments, **options):
        database = connect(*arguments, **options)
        database.execute("PRAGMA max_page_count = 1")  # not less than there are
        return database

    monkeypatch.setattr(sqlite3, "connect", small_disk)
    code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", out)
    assert (code, out.exists()) == (2, False)
    assert f"cannot write {out}: No space left on device" in errors


@pytest.mark.parametrize(
    "change", ["UPDATE {} SET mangledName = NULL", "ALTER TABLE {} DROP COLUMN mangledName"]
)
def test_an_export_without_mangled_names(change, cgtool, tmp_path):
    step = recorded("train_step")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, replays(step, [0], ids=True), step)
    with sqlite3.connect(file) as database:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        database.execute(f"UPDATE {table} SET demangledName = mangledName")
        database.execute(change.format(table))
        names = database.execute("SELECT id, value FROM StringIds").fetchall()
        plain = [(demangle(name), number) for number, name in names]
        database.executemany("UPDATE StringIds SET value = ? WHERE id = ?", plain)
    assert cgtool("annotate", file, "--with", STEP, "-o", out)[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {} DROP COLUMN shortName",
        "ALTER TABLE {} DROP COLUMN deviceId",
        "UPDATE {} SET shortName = 1 << 40",
        "UPDATE {} SET end = start - 500",
        # Kernels alone, with ids as CUPTI's older records have them.
        "UPDATE {} SET graphNodeId = graphNodeId & 0xffffffff",
    ],
)
def test_an_export_with_other_columns(change, cgtool, tmp_path):
    streams = recorded("two_streams")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, replays(streams, [0], ids=True), streams)
    with sqlite3.connect(file) as database:
        database.execute(change.format("CUPTI_ACTIVITY_KIND_KERNEL"))
    capture = ROOT / "samples" / "captures" / "two_streams.cgt"
    code, _, errors = cgtool("annotate", file, "--with", capture, "-o", out)
    assert code == 0, errors
    with sqlite3.connect(out) as database:
        counts = database.execute("SELECT count(*), count(op) FROM CGTOOL_KERNELS").fetchone()
    assert counts == (11, 11)


def test_an_export_without_kernels(cgtool, tmp_path):
    """Nsight Systems creates a table only for what there is."""
    step = recorded("train_step")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, replays(step, [0], ids=True), step)
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    assert cgtool("annotate", file, "--with", STEP, "-o", out)[0] == 1
    with sqlite3.connect(out) as database:
        assert database.execute("SELECT count(*) FROM CGTOOL_NODES").fetchone() == (0,)


def test_an_export_without_processes(cgtool, tmp_path):
    """The column may be empty; the view finds the nodes all the same."""
    step = recorded("train_step")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, replays(step, [0], ids=True), step)
    with sqlite3.connect(file) as database:
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET globalPid = NULL")
    assert cgtool("annotate", file, "--with", STEP, "-o", out)[0] == 0
    kernels = sum(node.kernel is not None for node in step.graphs[0].nodes)
    with sqlite3.connect(out) as database:
        counts = database.execute("SELECT count(*), count(op) FROM CGTOOL_KERNELS").fetchone()
    assert counts == (kernels, kernels)


def test_a_database_that_another_program_writes(cgtool, tmp_path, monkeypatch):
    # By default SQLite waits for five seconds.
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.2))
    step = recorded("train_step")
    file, out = tmp_path / "trace.sqlite", tmp_path / "out.sqlite"
    nsight(file, replays(step, [0], ids=True), step)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", out)
    assert (code, out.exists()) == (2, False)
    assert "database is locked\n  fix: wait until the program that writes it has ended" in errors


NOT_TRACES = {
    "nothing": (b"", "it is empty"),
    "text": (b"hello", "neither a database nor valid JSON"),
    "another program's JSON": (b'{"a": 1}', "it is JSON, but has no `traceEvents`"),
    "a trace of cgtool": (
        b'{"traceEvents": [], "otherData": {"cgtool": "1"}}',
        "cgtool wrote it, so it already has the lines",
    ),
    "rubbish behind": (
        gzip.compress(b'{"traceEvents": []}') + b"garbage",
        "the file is cut off or damaged",
    ),
    "cut off": (gzip.compress(b'{"traceEvents": []}' * 99)[:-20], "the file is cut off or damaged"),
    "other events": (b'{"traceEvents": {}}', "its JSON is not that of a trace: Expected `array`"),
    "events that are no objects": (
        b'{"traceEvents": [["cat", {"cat": "kernel"}]]}',
        "its JSON is not that of a trace: Expected `object`",
    ),
    "no GPU": (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', "no kernel ran inside a CUDA"),
    "a database": (b"SQLite format 3\0" + b"x" * 99, "the database cannot be read"),
}


@pytest.mark.parametrize(("content", "problem"), NOT_TRACES.values(), ids=NOT_TRACES)
def test_files_that_are_no_traces(content, problem, cgtool, tmp_path):
    file, out = tmp_path / "trace", tmp_path / "out.json"
    file.write_bytes(content)
    code, shown, errors = cgtool("annotate", file, "--with", STEP, "-o", out)
    assert (code, shown) == (2, "")
    assert problem in errors
    assert "\n  fix: " in errors or "wrote it" in errors
    assert not out.exists()


def test_a_report_of_nsight_systems_has_to_be_exported(cgtool, tmp_path):
    file = tmp_path / "my report.nsys-rep"
    file.write_bytes(b"QDSTRM")
    code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", tmp_path / "out.sqlite")
    assert (code, "that of an Nsight Systems report" in errors) == (2, True)
    assert f"fix: nsys export --type sqlite --include-json false '{file}'" in errors


def test_a_capture_in_the_place_of_the_trace(cgtool, tmp_path, written):
    out = tmp_path / "out.json"
    code, _, errors = cgtool("annotate", STEP, "--with", STEP, "-o", out)
    assert code == 2
    assert "it is a zip file, as captures are\n  fix: cgtool annotate TRACE" in errors
    garbage = tmp_path / "garbage.cgt"
    garbage.write_text("it is not what its name says")
    code, _, errors = cgtool("annotate", garbage, "--with", STEP, "-o", out)
    assert (code, "neither a database nor valid JSON" in errors) == (2, True)
    trace = written(eager(0))
    code, _, errors = cgtool("annotate", STEP, "--with", trace, "-o", out)
    assert (code, f"{trace} is not a capture file\n  fix: give a .cgt" in errors) == (2, True)


def test_a_trace_without_graphs(cgtool, tmp_path, written):
    file = written([*eager(0), *eager(1)])
    code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", tmp_path / "out.json")
    assert code == 2
    assert "why: its 2 kernels, memcpys and memsets were launched one by one" in errors


def test_a_trace_of_an_amd_gpu(cgtool, tmp_path, written):
    call = event("cuda_runtime", "hipGraphLaunch", 0, 5, 1, 1, {"correlation": 1})
    file = written([call, *eager(0)])
    code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", tmp_path / "out.json")
    assert code == 2
    assert "a trace of an AMD GPU" in errors


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["CREATE TABLE a (b)"], "not an Nsight Systems export with CUDA activity"),
        (
            ["CREATE TABLE StringIds (id, value)",
             "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, globalPid, correlationId)"],
            "its schema (no version) is unknown: CUPTI_ACTIVITY_KIND_KERNEL has no column "
            "graphNodeId",
        ),
        (
            ["CREATE TABLE StringIds (id, value)",
             "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, globalPid, correlationId, "
             "graphNodeId)",
             "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start)",
             "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1), (2)"],
            "2 launches of graphs, without their kernels",
        ),
        (
            ["CREATE TABLE StringIds (id, value)", 'CREATE TABLE "of ""another"" tool" (a)',
             "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, globalPid, correlationId, "
             "graphNodeId)"],
            "it has no GPU work at all: nsys profile --trace=cuda records it",
        ),
    ],
)  # fmt: skip
def test_other_databases(statements, problem, cgtool, tmp_path):
    file = tmp_path / "trace.sqlite"
    with sqlite3.connect(file) as database:
        for statement in statements:
            database.execute(statement)
    code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", tmp_path / "out.sqlite")
    assert code == 2
    assert problem in errors


def test_what_is_read_is_not_overwritten(cgtool, tmp_path, written):
    file = written(eager(0))
    code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", file)
    assert code == 2
    assert f"-o {file} would overwrite {file}" in errors


def test_a_pipe_cannot_be_replaced(cgtool, written):
    read_end, write_end = os.pipe()
    try:
        out = f"/dev/fd/{write_end}"
        file = written(replays(recorded("train_step"), [0]))
        code, _, errors = cgtool("annotate", file, "--with", STEP, "-o", out)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert code == 2
    assert f"cannot write {out}: it is a device or a pipe, not a file" in errors


def test_a_capture_of_the_simulated_device(cgtool, tmp_path, written):
    simulated = GOLD / "captures" / "mlp-separate-simulated.cgt"
    code, _, errors = cgtool(
        "annotate", written(eager(0)), "--with", simulated, "-o", tmp_path / "out.json"
    )
    assert code == 2
    assert "was captured on the simulated device, whose nodes are ops, not kernels" in errors


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize(
    "value", [1e308, -1e308, pytest.param(10**400, id="1e400"), 2**60, "12.5", None]
)
def test_gpu_work_without_times(field, value, cgtool, tmp_path, written):
    """Numbers that no time can be, or none at all: there is GPU work, but none that can be used."""
    events = replays(recorded("train_step"), [0])
    for each in events[1:]:
        each[field] = value
    code, _, errors = cgtool(
        "annotate", written(events), "--with", STEP, "-o", tmp_path / "out.json"
    )
    assert code == 2
    assert "none of its 55 kernels, memcpys and memsets has a time" in " ".join(errors.split())


def test_a_kernel_without_a_time_is_counted(cgtool, tmp_path, written):
    events = replays(recorded("train_step"), [0, 0], ids=True)
    del events[3]["dur"]
    _, out, _ = cgtool("annotate", written(events), "--with", STEP, "-o", tmp_path / "out.json")
    assert "1 kernel left out: `ts` or `dur` is missing" in out


@pytest.mark.parametrize("number", [float, Decimal])
def test_slices_nest_where_times_are_those_since_1970(number, cgtool, tmp_path, written):
    """Microseconds as floats have quarters there."""
    events = replays(recorded("train_step"), [0, 0], ids=True)
    for each in events:
        each["ts"] += 1.79e15
        if "dur" in each:
            each["dur"] += 0.137
    out = tmp_path / "out.json"
    assert cgtool("annotate", written(events), "--with", STEP, "-o", out)[0] == 0
    events = json.loads(out.read_text(), parse_float=number)["traceEvents"]
    bands = [each for each in events if is_band(each)]
    open_ends = []
    for each in sorted(
        (each for each in bands if each["ph"] == "X"), key=lambda each: (each["ts"], -each["dur"])
    ):
        while open_ends and open_ends[-1] <= each["ts"]:
            open_ends.pop()
        assert not open_ends or each["ts"] + each["dur"] <= open_ends[-1]
        open_ends.append(each["ts"] + each["dur"])
    assert len(bands) > 50


def test_names_that_begin_alike():
    assert _names(["f backward 0", "f backward 1"]) == "f backward 0 or 1"
    assert _names(["f forward", "g forward"]) == "f forward or g forward"
    assert _names([f"g {n}" for n in range(5)]) == "g 0 or 1 or 2 or 2 more"
    assert _names(["f"]) == "f"


def test_traces_of_two_ranks_in_one_file(cgtool, tmp_path, written):
    """Each process numbers its calls from 1: a launch of a kernel may have the number of the other
    rank's launch of a graph."""
    events = replays(recorded("train_step"), [0])
    call = {"correlation": events[0]["args"]["correlation"]}
    other = [
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, 9999, 9999, call),
        event("kernel", "an_eager_kernel", 20, 4, 1, 7, {**call, "stream": 7}),
    ]
    for merged in ([*events, *other], [*other, *events]):
        code, shown, _ = cgtool(
            "annotate", written(merged), "--with", STEP, "-o", tmp_path / "out.json"
        )
        assert code == 0
        assert "1 kernel outside graphs" in shown


VALUES = [None, True, -1, 1 << 70, 1e300, "x", [], {}, [1, 2], "\x1b[31m\u202e", {"a": "7"}]


@pytest.mark.parametrize("seed", range(3))
def test_mutated_files_are_refused_or_annotated(seed, tmp_path):
    """Bytes of a trace, values of its events, and bytes of a database, at random."""
    draw = random.Random(seed)
    program, streams = read(TRACES / "engine.cgt"), recorded("two_streams")
    original = gzip.decompress((TRACES / "engine-ids.json.gz").read_bytes())
    file = tmp_path / "export.sqlite"
    nsight(file, replays(streams, [0, 0], ids=True), streams)
    database = file.read_bytes()
    annotated_files = 0
    for _ in range(30):
        mutated = json.loads(original)
        for _ in range(4):
            each = draw.choice(mutated["traceEvents"])
            fields = (
                draw.choice([each, each["args"]]) if isinstance(each.get("args"), dict) else each
            )
            fields[draw.choice(list(fields))] = draw.choice(VALUES)
        for content, capture in (
            (with_other_bytes(draw, original), program),
            (json.dumps(mutated).encode(), program),
            (with_other_bytes(draw, database), streams),
        ):
            file.write_bytes(content)
            annotated_files += attempt(file, capture, tmp_path / "out")
    assert annotated_files > 20


def with_other_bytes(draw, content):
    content = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def attempt(file, capture, out) -> bool:
    """Whether a file can be annotated; what cannot is refused in a sentence."""
    try:
        is_database = file.read_bytes().startswith(b"SQLite format 3")
        found = NsightTrace(file) if is_database else read_chrome(file)
        launches = match_launches(capture, found.records)
        if is_database:
            found.write(out, nodes(found, launches, capture))
        else:
            out.write_bytes(b"".join(annotated(found, launches, capture)))
    except CgtoolError:
        return False
    return True


def test_a_trace_is_annotated_once(cgtool, tmp_path, written):
    file, once, twice = written([]), tmp_path / "once.json", tmp_path / "twice.json"
    content = trace(replays(recorded("train_step"), [0]))
    file.write_text(json.dumps({**content, "otherData": {"host": "a"}}))
    assert cgtool("annotate", file, "--with", STEP, "-o", once)[0] == 0
    assert json.loads(once.read_text())["otherData"]["host"] == "a"
    code, _, errors = cgtool("annotate", once, "--with", STEP, "-o", twice)
    assert code == 2
    assert "cgtool wrote it, so it already has the lines" in errors


def test_a_trace_without_a_match_is_not_marked_as_annotated(cgtool, tmp_path, written):
    file, out = written(replays(recorded("transformer"), [0])), tmp_path / "out.json"
    assert cgtool("annotate", file, "--with", STEP, "-o", out)[0] == 1
    assert "cudaGraphInlineAnnotated" not in json.loads(out.read_text())

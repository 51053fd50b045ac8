"""``cgtool run``: what it keeps of programs, and that they run as they would without it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.analysis.ledger_report import sentence_of
from cgtool.model import capture_file
from cgtool.model.capture import SIMULATED_OPS, Capture
from cgtool.model.ledger import LedgerGraph
from tests.forked_workers import run_cgtool

ENGINE = """
import os, sys, threading, subprocess
import torch
from torch import nn

class Engine:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
        self.graphs = {}

    def capture(self, batch):
        x = torch.zeros(batch, 4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = self.model(x)
        self.graphs[batch] = graph, x, y

    def run(self, x):
        graph, static, y = self.graphs[len(x)]
        static.copy_(x)
        graph.replay()
        return y.clone()

@torch.no_grad()
def main():
    torch.manual_seed(0)
    engine = Engine()
    for batch in (1, 2, 4):
        engine.capture(batch)
    total = sum(engine.run(torch.full((1 + i % 2, 4), float(i)).cuda()).sum() for i in range(99))
    print("total", total.item())
    refused = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(refused):
            torch.zeros(3, device="cuda").sum().item()
    except RuntimeError as error:
        print("refused", type(error).__name__)

if len(sys.argv) > 1:
    print("child", sys.argv[1:])
    main()
    os._exit(5)
main()
child = subprocess.run([sys.executable, __file__, "--lr", "3"], check=False)
print("environment", "CGTOOL_RECORDING" in os.environ, child.returncode)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def run(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """``cgtool run`` in ``folder``, which forks the script."""
    return run_cgtool("run", "--device", "simulated", *arguments, cwd=folder)


def run_fresh(*arguments: object, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """``python -m cgtool run`` in ``folder``."""
    command = [sys.executable, "-m", "cgtool", "run", "--device", "simulated", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=120, **options
    )


@pytest.fixture(scope="module")
def engine(folder: Path) -> tuple[subprocess.CompletedProcess[str], Capture]:
    """What a program with two processes printed, and what was kept of it."""
    done = run_fresh(program(folder, "engine.py", ENGINE).name, folder=folder)
    return done, capture_file.read(folder / "engine-run.cgt")


def ledger(capture: Capture) -> list[LedgerGraph]:
    assert capture.ledger is not None
    return list(capture.ledger.graphs)


def test_the_program_runs_as_it_would(engine, folder: Path) -> None:
    done, _ = engine
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[-1] == "environment True 5"
    assert lines.count("refused AcceleratorError") + lines.count("refused RuntimeError") == 2
    assert "child ['--lr', '3']" in lines
    # Both processes computed the same, and the report is not in the program's own output.
    assert len({line for line in lines if line.startswith("total")}) == 1
    assert "graphs" not in done.stdout
    assert "saved engine-run.cgt" in done.stderr
    assert not [path for path in folder.iterdir() if path.name.startswith(".cgtool")]


def test_each_graph_has_its_nodes_replays_and_lines(engine) -> None:
    _, capture = engine
    assert SIMULATED_OPS in capture.caveats[0].text
    for process in (0, 1):
        graphs = [each for each in ledger(capture) if each.process == process]
        assert [each.replays for each in graphs] == [50, 49, 0, 0]
        assert [each.owner for each in graphs] == ["Engine.capture"] * 3 + ["main"]
        contents = [capture.graphs[each.graph] for each in graphs[:3] if each.graph is not None]
        assert [graph.name for graph in contents] == [
            f"Engine.capture float32[{batch},8], process {process}" for batch in (1, 2, 4)
        ]
        assert [len(graph.nodes) for graph in contents] == [3, 3, 3]
        assert [len(graph.edges) for graph in contents] == [2, 2, 2]
        origins = [capture.origins[node.origin or 0] for node in contents[0].nodes]
        assert [origin.op for origin in origins] == ["aten::addmm", "aten::relu", "aten::addmm"]
        assert [origin.module for origin in origins] == ["0", "1", "2"]
        places = {capture.frames[place.frames[0]].function for place in graphs[0].replayed_at}
        assert places == {"Engine.run"}
        assert all(0 < each.capture_ns < 10**10 for each in graphs)
        # The graphs of three batch sizes are not the same: their shapes differ.
        assert {each.same_as for each in graphs} == {None}


def test_a_refused_capture_is_kept_with_its_error(engine) -> None:
    failed = [each for each in ledger(engine[1]) if each.failure is not None]
    assert len(failed) == 2
    assert all("not permitted when stream is capturing" in str(each.failure) for each in failed)
    assert all(each.graph is None for each in failed)
    causes = [each.diagnosis for each in failed]
    assert [cause and cause.code for cause in causes] == ["sync-item"] * 2
    lines = {engine[1].frames[cause.frames[0]].line for cause in causes if cause is not None}
    assert lines == {1 + ENGINE[: ENGINE.index("torch.zeros(3")].count("\n")}


def test_processes_and_their_ends(engine) -> None:
    _, capture = engine
    assert capture.ledger is not None
    first, second = capture.ledger.processes
    assert second.parent == first.pid
    assert first.ended_ns is not None
    # It called os._exit, and nothing of it is missing but that.
    assert second.ended_ns is None
    assert capture.ledger.exit_status == 3
    assert capture.ledger.lost == ()


def test_the_table_says_what_matters_first(engine, cgtool, folder: Path) -> None:
    done, _ = engine
    assert "6 graphs, 198 replays; 2 graphs were never replayed" in done.stderr
    assert "2 captures failed" in done.stderr
    code, out, _ = cgtool("run", folder / "engine-run.cgt", "--format", "json")
    assert code == 0
    report = json.loads(out)
    assert report["schema"] == "cgtool-ledger"
    row = next(row for row in report["lines"] if row["owner"] == "Engine.capture")
    assert (row["graphs"], row["replays"], row["unused"]) == (6, 198, 2)
    assert row["line"].startswith("engine.py:")


@pytest.mark.parametrize("option", ["--times", "--device=simulated"])
def test_a_saved_run_is_not_recorded_again(option: str, engine, cgtool, folder: Path) -> None:
    code, out, err = cgtool("run", option, folder / "engine-run.cgt")
    assert (code, out) == (2, "")
    assert f"{option.partition('=')[0]} applies to a program" in err


def test_other_commands_read_it(engine, cgtool, folder: Path) -> None:
    saved = folder / "engine-run.cgt"
    code, out, _ = cgtool("dump", saved, "--graph", "1", "--dot")
    assert code == 0
    assert "addmm" in out
    assert cgtool("diff", saved, saved)[0] == 0
    code, _, err = cgtool("profile", saved, "--by", "line")
    assert (code, "has no node times" in err) == (2, True)


def test_pools_of_a_run_are_read_at_their_end_and_at_that_of_the_process(
    folder: Path, cgtool
) -> None:
    text = """
    import torch
    kept = []
    def capture(size, pool=None):
        x = torch.zeros(size, 1024, 1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x + 1
            z = y * 2
        graph.replay()
        return graph, x, z
    graph, x, z = capture(3)
    kept.append(capture(2, graph.pool()))
    del graph, x, z
    dropped = capture(5)[0].pool()
    """
    done = run("--times", program(folder, "pools.py", text).name, folder=folder)
    assert (done.returncode, "no GPU times" in done.stderr) == (0, True)
    saved = folder / "pools-run.cgt"
    code, out, _ = cgtool("pools", saved, "--format", "json")
    assert code == 0
    first, second = sorted(json.loads(out)["pools"], key=lambda row: row["name"])
    assert (first["graphs"], first["kept_by"]) == (2, "1 graph")
    assert first["reserved_bytes"] - first["used_bytes"] == first["free_bytes"] >= 3 << 22
    # Its last graph was freed before the process ended.
    assert (second["graphs"], second["kept_by"]) == (1, "")
    assert second["reserved_bytes"] >= 5 << 22
    code, out, _ = cgtool("pools", saved)
    assert (code, out.startswith("1 pool with ")) == (0, True)
    assert "; 1 pool had " in out.partition("\n")[0]
    assert cgtool("pools", saved, "--pool", "pool 0")[0] == 2


def test_a_profile_of_a_run_says_what_captures_were_spent_on(engine, cgtool, folder: Path) -> None:
    code, out, _ = cgtool("profile", folder / "engine-run.cgt")
    assert (code, out.startswith("no GPU times on the simulated device")) == (0, True)
    assert "Captures" in out
    code, out, _ = cgtool("profile", folder / "engine-run.cgt", "--format", "json")
    report = json.loads(out)
    row = next(row for row in report["lines"] if row["owner"] == "Engine.capture")
    spent = row["spent"]
    assert spent["prepare_ns"] > 0
    assert spent["warm_up_ns"] is None
    parts = sum(spent[part] for part in ("code_ns", "compile_ns", "collector_ns", "instantiate_ns"))
    assert parts == row["capture_ns"]
    assert row["first_host_ns"] > 0
    assert (report["graphs_gpu_ns"], report["gpu_ns"], row["gpu_ns"]) == (None, None, None)


def test_a_gate_of_a_saved_run_needs_no_entry(engine, cgtool, folder: Path) -> None:
    saved, base = folder / "engine-run.cgt", folder / "base.json"
    limits = ("--max-graphs", 6, "--max-rerecords", 0, "--max-failed-captures", 2)
    assert cgtool("gate", saved, *limits, "--save-baseline", base)[0] == 0
    assert cgtool("gate", saved, "--baseline", base)[0] == 0
    code, out, _ = cgtool("gate", saved, "--max-unused", 1, "--max-failed-captures", 0)
    assert code == 1
    assert "2 of 6 captures at engine.py:14" in out
    assert "not permitted when stream is capturing" in " ".join(out.split())
    code, out, _ = cgtool("gate", saved, "--max-pool-mib", 0)
    assert code == 1
    assert "pool 4 of 1 graph" in out
    # What a run does not keep is not zero.
    assert cgtool("gate", saved, "--min-graph-share", 1)[0] == 5


def test_a_program_has_a_table_of_its_own(engine, cgtool, folder: Path, monkeypatch) -> None:
    text = '[tool.cgtool.gate]\nmax-graphs = 6\n[tool.cgtool.gate."python engine.py"]\n'
    (folder / "pyproject.toml").write_text(text + "max-unused = 1\n")
    monkeypatch.chdir(folder)
    try:
        code, out, _ = cgtool("gate", "engine-run.cgt")
    finally:
        (folder / "pyproject.toml").unlink()
    assert code == 1
    assert '[tool.cgtool.gate."python engine.py"] max-unused' in " ".join(out.split())


def test_a_row_for_each_graph(engine, cgtool, folder: Path) -> None:
    code, out, _ = cgtool("run", "--graphs", folder / "engine-run.cgt")
    assert code == 0
    assert out.count("engine.py:14") >= 6
    assert "error[sync-item]" in out
    assert "note[graph-never-replayed]" in out


def test_a_killed_program_leaves_what_it_did(folder: Path) -> None:
    killed = program(
        folder,
        "killed.py",
        """
        import os, signal, torch
        x = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        for _ in range(70):
            graph.replay()
        late = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            late.capture_begin()
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    done = run("-o", "killed.cgt", killed.name, folder=folder)
    assert done.returncode == 128 + signal.SIGKILL
    first, second = ledger(capture_file.read(folder / "killed.cgt"))
    assert (first.replays, first.failure) == (70, None)
    assert second.failure == "the process ended during the capture"


def test_when_a_graph_was_replayed(folder: Path) -> None:
    program(
        folder,
        "phases.py",
        """
        import time, torch
        x = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        for _ in range(30):
            graph.replay()
        time.sleep(2)
        for _ in range(20):
            graph.replay()
        """,
    )
    # A program that need not import PyTorch may end before the command has imported what looks.
    run_fresh("-o", "phases.cgt", "phases.py", folder=folder)
    (graph,) = ledger(capture_file.read(folder / "phases.cgt"))
    assert graph.replays == 50
    # Somebody looked while it slept.
    assert {moment.replays for moment in graph.moments} >= {30}
    assert all(
        graph.first_replay_ns < moment.time_ns < graph.last_replay_ns for moment in graph.moments
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_pool_leave_their_nodes(folder: Path, method: str) -> None:
    """The pool ends them by SIGTERM."""
    program(
        folder,
        "pool.py",
        f"""
        import multiprocessing, torch

        def capture(_):
            x = torch.ones(3, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x + 1
            graph.replay()

        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                pool.map(capture, range(3))
        """,
    )
    run("-o", "pool.cgt", "pool.py", folder=folder)
    capture = capture_file.read(folder / "pool.cgt")
    assert [len(graph.nodes) for graph in capture.graphs] == [1, 1, 1]
    assert capture.ledger is not None
    assert not any("nodes" in reason for reason in capture.ledger.lost)


def test_a_capture_that_an_error_of_the_program_ends(folder: Path) -> None:
    program(
        folder,
        "no_scale.py",
        """
        import torch
        x = torch.ones(3, device="cuda")
        def step():
            return x * {}["scale"]
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                step()
        except KeyError:
            pass
        """,
    )
    run("-o", "no_scale.cgt", "no_scale.py", folder=folder)
    capture = capture_file.read(folder / "no_scale.cgt")
    (graph,) = ledger(capture)
    assert graph.failure == "KeyError: 'scale'"
    assert graph.diagnosis is not None
    assert graph.diagnosis.code == "exception-in-capture"
    assert capture.frames[graph.diagnosis.frames[0]].line == 5


def test_a_capture_that_an_error_ended_which_the_code_caught(folder: Path) -> None:
    program(
        folder,
        "caught.py",
        """
        import contextlib, torch
        x = torch.ones(3, device="cuda")
        with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            total = (x * 2).sum()
            with contextlib.suppress(RuntimeError):
                print(total.item())
            x + 1
        """,
    )
    run("-o", "caught.cgt", "caught.py", folder=folder)
    capture = capture_file.read(folder / "caught.cgt")
    (graph,) = ledger(capture)
    assert graph.diagnosis is not None
    assert graph.diagnosis.code == "sync-item"
    assert capture.frames[graph.diagnosis.frames[0]].line == 7


def test_a_graph_whose_code_has_raised_and_one_of_a_class_of_the_program(folder: Path) -> None:
    program(
        folder,
        "handled.py",
        """
        import contextlib, torch
        x = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with contextlib.suppress(StopIteration), torch.cuda.graph(graph):
            y = x + 1
            raise StopIteration
        for _ in range(5):
            graph.replay()
        print("y", y.tolist())

        class Plain:
            def capture_begin(self, *args, **kwargs): pass
            capture_end = replay = lambda self: None
        torch.cuda.CUDAGraph = Plain
        for _ in range(2):
            with torch.cuda.graph(Plain()):
                pass
        """,
    )
    done = run("-o", "handled.cgt", "handled.py", folder=folder)
    assert "y [2.0, 2.0, 2.0]" in done.stdout
    capture = capture_file.read(folder / "handled.cgt")
    (graph,) = ledger(capture)
    assert (graph.replays, graph.failure) == (5, None)
    (found,) = ledger_findings(capture)
    assert (found.code, found.frames[0].line) == ("exception-in-capture", 7)
    assert "replays run only what comes before that" in found.reason
    assert [node.shape for node in capture.graphs[0].nodes] == ["float32[3]"]
    assert capture.ledger is not None
    (lost,) = capture.ledger.lost
    assert "captures and replays of __main__.Plain are not recorded" in lost


@pytest.mark.parametrize(("ending", "is_found"), [("raise SystemExit(3)", False), ("", True)])
def test_a_program_that_fails_before_its_first_replay_has_no_unused_graph(
    folder: Path, ending: str, is_found: bool
) -> None:
    program(
        folder,
        "early.py",
        f"""
        import torch
        x = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        {ending}
        """,
    )
    run("-o", "early.cgt", "early.py", folder=folder)
    capture = capture_file.read(folder / "early.cgt")
    assert capture.ledger is not None
    found = [finding.code for finding in ledger_findings(capture)]
    assert ("graph-never-replayed" in found) is is_found
    assert ("wasted" in sentence_of(capture.ledger)) is is_found


def test_killed_in_its_first_capture_it_is_still_simulated(folder: Path) -> None:
    program(
        folder,
        "at_once.py",
        """
        import os, signal, torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    run("-o", "at_once.cgt", "at_once.py", folder=folder)
    capture = capture_file.read(folder / "at_once.cgt")
    assert (capture.environment.device, capture.environment.simulated) == ("simulated", True)


def test_graphs_that_are_reset_or_freed(folder: Path) -> None:
    program(
        folder,
        "ends.py",
        """
        import torch
        def capture():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                torch.ones(3, device="cuda")
            return graph
        kept, reset, freed = capture(), capture(), capture()
        reset.reset()
        del freed
        total = torch.zeros(2, device="cuda")
        in_place = torch.cuda.CUDAGraph()
        with torch.cuda.graph(in_place):
            total.add_(1)
        in_place.replay(), in_place.replay()
        print(total.tolist())
        """,
    )
    done = run("-m", "ends", folder=folder)
    # Simulated: the capture itself changes nothing.
    assert (done.returncode, done.stdout) == (0, "[2.0, 2.0]\n")
    graphs = ledger(capture_file.read(folder / "ends-run.cgt"))
    assert [each.end for each in graphs] == [None, "reset", "freed", None]
    # One executable graph could serve the first three.
    assert [each.same_as for each in graphs] == [None, 0, 0, None]


def test_graphs_of_a_graphed_callable_are_its_forward_and_its_backward(folder: Path) -> None:
    path = program(
        folder,
        "graphed.py",
        """
        import torch
        linear, x = torch.nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
        first, second = torch.cuda.make_graphed_callables((linear, torch.nn.ReLU()), ((x,), (x,)))
        """,
    )
    assert run(path.name, folder=folder).returncode == 0
    graphs = ledger(capture_file.read(folder / "graphed-run.cgt"))
    assert [graph.key for graph in graphs] == ["forward", "forward", "backward"]


def test_a_backward_belongs_to_its_forward_in_the_same_graph(folder: Path) -> None:
    """Also if two graphs have the same ops, in the same order, and one line for both backwards."""
    path = program(
        folder,
        "backward.py",
        """
        import torch

        def first(x):
            return x.sin()

        def second(x):
            return x.sin()

        x = torch.ones(4, device="cuda", requires_grad=True)
        graphs = {}
        for function in (first, second):
            function(x).sum().backward()
            graphs[function] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[function]):
                function(x).sum().backward()
        """,
    )
    assert run(path.name, folder=folder).returncode == 0
    capture = capture_file.read(folder / "backward-run.cgt")
    functions = []
    for graph in capture.graphs:
        origins = [capture.origins[node.origin] for node in graph.nodes if node.origin is not None]
        [forward] = [origin.forward for origin in origins if origin.op == "aten::cos"]
        assert forward is not None
        functions.append(capture.frames[capture.origins[forward].frames[0]].function)
    assert functions == ["first", "second"]


def test_commands_that_are_not_python(folder: Path) -> None:
    done = run("-q", "-o", "shell.cgt", "--", "sh", "-c", "echo hello; exit 4", folder=folder)
    assert (done.returncode, done.stdout) == (4, "hello\n")
    assert ledger(capture_file.read(folder / "shell.cgt")) == []
    done = run("-o", "shell.cgt", "--", "true", folder=folder)
    assert "the program captured no CUDA graph" in done.stderr
    assert " on " not in done.stderr
    done = run("-o", "shell.cgt", "--", "no-such-command", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot run no-such-command" in done.stderr


FIRST_ON_THE_GPU = """
import torch
@torch.library.custom_op("mine::make", mutates_args=())
def make(x: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(3, device="cuda")
    assert ones.is_cuda
    return (ones * 2).cpu()
on_host = torch.ones(3) + 1
assert not make(on_host).is_cuda
assert (torch.ones(3, device="cuda") + 1).is_cuda and not on_host.is_cuda
"""


def test_an_op_of_the_programs_own_may_be_the_first_to_use_the_gpu(folder: Path) -> None:
    """Ops are placed from then on."""
    first = program(folder, "first.py", FIRST_ON_THE_GPU)
    done = run(first.name, folder=folder)
    assert done.returncode == 0, done.stderr


def test_options_after_the_program_are_its_own(folder: Path) -> None:
    """One table can be chosen of those on standard error; a name that is wrong loses no run."""
    prints = program(folder, "prints.py", "import sys\nprint(sys.argv[1:])")
    done = run("--table", "no-such", prints.name, "-o", "for_it.cgt", folder=folder)
    assert (done.returncode, done.stdout) == (2, "['-o', 'for_it.cgt']\n")
    assert "cgtool capture prints.py:NAME" in done.stderr
    assert not list(folder.glob(".cgtool-run-*"))
    assert not (folder / "prints-run.cgt").exists()
    done = run("--table", "graphs", prints.name, "-o", "for_it.cgt", folder=folder)
    assert (done.returncode, "the program captured" in done.stderr) == (0, False)
    assert "cgtool run -o for_it.cgt prints.py" in done.stderr
    assert not (folder / "for_it.cgt").exists()
    done = run("-qoown.cgt", prints.name, "-o", "for_it.cgt", folder=folder)
    assert (folder / "own.cgt").exists()
    assert "-o for_it.cgt prints.py" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "missing.py: no such file\n  fix: give its path from"),
        ([f"{__file__}:build"], "is an ENTRY, not a program\n  fix: cgtool capture"),
        (["missing"], "missing: no such file\n  fix: for a command that is not a Python script"),
        (["-m"], "nothing after -m\n  fix: cgtool run -m package.module"),
        (["--"], "nothing after --\n  fix: cgtool run -- torchrun"),
        (["--device", "tpu", "train.py"], "device `tpu`"),
        (["-", "a b"], "cgtool run -- python - 'a b'"),
        (["--device", "simulated", "/"], "/ is not a folder of `cgtool run`\n  fix: cgtool run t"),
        (["saved.cgt", "a b"], "nothing can follow a saved run: 'a b'"),
        ([], "Missing argument"),
    ],
)
def test_wrong_use(cgtool, arguments: list[str], said: str) -> None:
    code, out, err = cgtool("run", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_no_folder_is_left_where_nothing_can_be_written(
    cgtool, tmp_path: Path, monkeypatch
) -> None:
    def is_full(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", is_full)
    code, _, err = cgtool("run", "--", "true")
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "No space left on device" in err


def test_what_the_program_imports_is_its_own(folder: Path) -> None:
    """Its own sitecustomize runs, and looking for PyTorch is not importing it."""
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.own_site = True\n")
    looks = program(
        folder,
        "looks.py",
        """
        import importlib.util, sys
        assert sys.own_site
        assert sys.modules["sitecustomize"].__file__.endswith("own/sitecustomize.py")
        assert not [path for path in sys.path if "recorder" in path]
        assert importlib.util.find_spec("torch") is not None
        assert "torch" not in sys.modules and "msgspec" not in sys.modules
        import torch
        assert torch.__spec__.loader is torch.__loader__
        assert type(torch.__loader__).__module__.startswith("_frozen_importlib")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.ones(3, device="cuda") + 1
        assert "sympy" not in sys.modules, "half a second, in the first capture"
        """,
    )
    paths = str(own), os.environ.get("PYTHONPATH"), str(Path.cwd())
    path = os.pathsep.join(filter(None, paths))
    done = run_fresh(looks.name, folder=folder, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert len(ledger(capture_file.read(folder / "looks-run.cgt"))) == 1


def test_ctrl_c_is_for_the_program(folder: Path) -> None:
    waits = program(
        folder,
        "waits.py",
        """
        import sys, time, torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.ones(3, device="cuda")
        print("ready", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit(7)
        """,
    )
    command = [sys.executable, "-m", "cgtool", "run", "--device", "simulated", waits.name]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        time.sleep(0.1)
        os.killpg(started.pid, signal.SIGINT)
        assert started.wait(60) == 7
    assert len(ledger(capture_file.read(folder / "waits-run.cgt"))) == 1

"""``cgtool run`` with programs that end badly, do unusual things, or have too little room."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from cgtool.analysis.diff.compare import compare
from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.analysis.ledger_report import ledger_report, sentence_of
from cgtool.cli import run as run_command
from cgtool.model import capture_file
from cgtool.model.journal import COMMAND, COUNTERS, LOG
from cgtool.model.ledger import Ledger, LedgerGraph
from tests.forked_workers import run_cgtool

CAPTURE = """
import torch

def capture(replays):
    x = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    for _ in range(replays):
        graph.replay()
    return graph, x, y
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    (path / "capturing.py").write_text(CAPTURE)
    return path


def program(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


CGTOOL_RUN = [sys.executable, "-m", "cgtool", "run", "-q"]


def command(*arguments: object) -> list[str]:
    return [*CGTOOL_RUN, "--device", "simulated", *map(str, arguments)]


def merge(journals: Path, target: str, *, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CGTOOL_RUN, journals, "-o", target],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run(*arguments: object, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def run_forked(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """For a program that does nothing unusual before it has imported PyTorch, or with signals."""
    return run_cgtool("run", "-q", "--device", "simulated", name, cwd=folder)


def ledger(file: Path) -> Ledger:
    found = capture_file.read(file).ledger
    assert found is not None
    return found


def lives(graphs: tuple[LedgerGraph, ...]) -> list[tuple[int, str | None, str | None]]:
    return [(each.replays, each.failure, each.end) for each in graphs]


def test_a_process_that_does_everything_unusual(folder: Path) -> None:
    name = program(
        folder,
        "unusual.py",
        """
        import gc, os, sys, threading, traceback, warnings

        def ours():
            return [name for name in sys.modules if name.startswith(("cgtool", "msgspec"))]

        assert not ours(), ours()
        path = list(sys.path)
        import torch
        from torch._C import _dispatch_tls_local_include_set as included_keys
        from capturing import capture
        assert sys.path == path

        # Inside an except block.
        try:
            raise ValueError
        except ValueError:
            handled = capture(2)

        # Ended on another thread.
        stream, ended = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        model, x = torch.nn.Linear(3, 3).cuda(), torch.ones(3, device="cuda")
        keys = str(included_keys())
        with torch.cuda.stream(stream):
            ended.capture_begin(capture_error_mode="relaxed")
            model(x)
        def end():
            with torch.cuda.stream(stream):
                ended.capture_end()
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        hooks = torch.nn.modules.module
        assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
        x + 1
        assert str(included_keys()) == keys

        # A warning and a traceback point at what they did before.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass
        assert caught[0].filename == torch.cuda.graphs.__file__, caught[0]
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(torch.ones(4, 4, device="cuda"))
        except RuntimeError as error:
            assert "cannot be multiplied" in str(error)
            frames = traceback.extract_tb(error.__traceback__)
            assert not [frame for frame in frames if "cgtool" in frame.filename], frames

        # A class of its own instead of PyTorch's; replays by four threads at once.
        class Graph(torch.cuda.CUDAGraph):
            def replay(self):
                super().replay()
        torch.cuda.CUDAGraph = Graph
        shared, *_ = capture(0)
        sys.setswitchinterval(1e-6)
        def replays():
            for _ in range(250):
                shared.replay()
        threads = [threading.Thread(target=replays) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        # A graph that is freed during its capture, and one that is part of a cycle.
        abandoned = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            abandoned.capture_begin()
        del abandoned
        os.close(1)
        os.close(2)
        """,
    )
    done = run(name, folder=folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "unusual-run.cgt")
    assert found.lost == ()
    handled, ended, empty, failed, shared, abandoned = lives(found.graphs)
    assert (handled, ended) == ((2, None, None), (0, None, None))
    assert (empty[1], shared) == (None, (1000, None, None))
    assert "cannot be multiplied" in str(failed[1])
    assert abandoned[1] == "the graph was freed during its capture"


def test_all_kinds_of_processes(folder: Path) -> None:
    name = program(
        folder,
        "processes.py",
        """
        import multiprocessing, os, sys, time, torch
        from capturing import capture

        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.tensor(index)

        if __name__ == "__main__":
            for replays, method in enumerate(("spawn", "fork"), 1):
                context = multiprocessing.get_context(method)
                process = context.Process(target=capture, args=(replays,))
                process.start()
                process.join()
            assert sum(map(len, torch.utils.data.DataLoader(Numbers(), num_workers=1))) == 4
            kept = capture(3)
            if os.fork() == 0:
                # Not the child's graph.
                kept[0].replay()
                if os.fork():
                    os._exit(0)
                # A daemon, which outlives the command.
                os.setsid()
                os.closerange(0, 256)
                while os.path.exists("processes-run.cgt") is False:
                    time.sleep(0.05)
                capture(4)
                os._exit(0)
            os.wait()
            os.execv(sys.executable, [sys.executable, "-c", "from capturing import *; capture(5)"])
        """,
    )
    done = run(name, folder=folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "processes-run.cgt")
    assert sorted(each.replays for each in found.graphs) == [1, 2, 3, 5]
    # By replays: spawned, forked, of the program itself, after exec.
    by = {each.replays: found.processes[each.process] for each in found.graphs}
    assert [by[replays].forked for replays in (1, 2, 3, 5)] == [False, True, False, False]
    assert "1 of its processes is still running and being recorded; when it ends: " in done.stderr
    (journals,) = folder.glob(".cgtool-run-*")
    daemon = max(each.pid for each in found.processes if each.forked)
    for _ in range(200):
        if not Path(f"/proc/{daemon}").exists():
            break
        time.sleep(0.05)
    done = merge(journals, "daemon.cgt", folder=folder)
    assert done.returncode == 0, done.stderr
    later = ledger(folder / "daemon.cgt")
    assert sorted(each.replays for each in later.graphs) == [1, 2, 3, 4, 5]
    assert later.lost == ()
    assert not journals.exists()


def test_a_process_that_begins_after_the_merge_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs: list[Path] = []

    def show(*_arguments: object, **_options: object) -> None:
        (folder,) = tmp_path.glob(".cgtool-run-*")
        logs.append(folder / f"{os.getpid()}-0{LOG}")
        logs[0].touch()

    monkeypatch.setattr(run_command, "_show", show)
    with pytest.raises(typer.Exit):
        run_command.run(program=["--", "true"], output=tmp_path / "late.cgt")
    assert logs[0].exists()
    assert "1 of its processes is still running" in capsys.readouterr().err


def test_a_full_disk(folder: Path) -> None:
    name = program(
        folder,
        "full.py",
        """
        import resource
        from capturing import capture
        kept = [capture(7)]
        # The log cannot grow beyond what it has; the counters have their room.
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        kept += [capture(1) for _ in range(600)]
        kept[0][0].replay()
        """,
    )
    done = run_forked(name, folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "full-run.cgt")
    assert 2 < len(found.graphs) < 601
    assert found.incomplete
    assert sentence_of(found).startswith(f"at least {len(found.graphs)} graphs, ")
    assert found.graphs[0].replays == 8
    assert len(found.lost) == 1, found.lost
    assert "records could not be written" in found.lost[0]
    ends = {each.failure for each in found.graphs}
    assert ends <= {None, "the end of the capture was not recorded"}
    assert all(each.failure is None for each in found.graphs if each.replays)


def test_another_thread_works_while_one_captures(folder: Path) -> None:
    name = program(
        folder,
        "works.py",
        """
        import threading, torch
        x, other = (torch.zeros(3, device="cuda") for _ in range(2))
        def work():
            other.add_(5)
            torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = x + 1
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        graph.replay()
        print("other", other.tolist())
        """,
    )
    done = run_forked(name, folder)
    assert "other [5.0, 5.0, 5.0]" in done.stdout, done.stderr
    capture = capture_file.read(folder / "works-run.cgt")
    assert [len(graph.nodes) for graph in capture.graphs] == [1]


def test_pytorch_is_imported_on_a_thread(folder: Path) -> None:
    name = program(
        folder,
        "imports.py",
        """
        import threading
        thread = threading.Thread(target=lambda: __import__("torch"))
        thread.start()
        thread.join()
        import torch
        x = torch.zeros(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        print("y", y.tolist())
        """,
    )
    done = run(name, folder=folder)
    assert "y [1.0, 1.0, 1.0]" in done.stdout, done.stderr
    assert [each.replays for each in ledger(folder / "imports-run.cgt").graphs] == [1]


def test_replays_that_could_not_be_counted_are_not_none(folder: Path) -> None:
    name = program(
        folder,
        "no_room.py",
        """
        import resource
        # The counters of the replays need a larger file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))
        from capturing import capture
        kept = capture(7)
        """,
    )
    done = run(name, folder=folder)
    assert done.returncode == 0, done.stderr
    capture = capture_file.read(folder / "no_room-run.cgt")
    assert capture.ledger is not None
    assert [graph.uncounted for graph in capture.ledger.graphs] == [True]
    assert list(ledger_findings(capture)) == []
    assert sentence_of(capture.ledger) == "at least 1 graph, replays not counted"
    assert [row.replays for row in ledger_report(capture).graphs] == [None]
    (replays,) = (row for row in compare(capture, capture).program if row.kind == "replays")
    assert (replays.a, replays.b) == (None, None)
    gate = [sys.executable, "-m", "cgtool", "gate", "no_room-run.cgt", "--max-unused", "0"]
    assert subprocess.run(gate, cwd=folder, capture_output=True, check=False).returncode == 5


def test_cgtool_is_killed_and_the_program_goes_on(folder: Path) -> None:
    name = program(
        folder,
        "goes_on.py",
        """
        import os, sys, time
        from capturing import capture
        kept = capture(2)
        print(os.getpid(), flush=True)
        sys.stdin.read()
        time.sleep(0.5)  # nothing is appended meanwhile
        kept[0].replay()
        open("went_on", "w").close()
        os.abort()
        """,
    )
    with subprocess.Popen(
        command(name), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        started.kill()
        started.wait()
        started.stdin.close()
        for _ in range(200):
            if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
                break
            time.sleep(0.05)
    assert (folder / "went_on").exists()
    (journals,) = folder.glob(".cgtool-run-*")
    done = merge(journals, "goes_on.cgt", folder=folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "goes_on.cgt")
    assert (found.command, found.exit_status) == (("python", name), None)
    (graph,) = found.graphs
    assert graph.replays == 3
    assert graph.last_replay_ns is not None
    assert found.wall_ns >= graph.last_replay_ns
    assert not journals.exists()


def test_signals_are_passed_on(folder: Path) -> None:
    name = program(
        folder,
        "signals.py",
        """
        import ctypes, signal, time
        from capturing import capture
        kept = capture(2)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        def crash(number, frame):
            kept[0].replay()
            ctypes.string_at(0)
        signal.signal(signal.SIGTERM, crash)
        print("ready", flush=True)
        while True:
            time.sleep(0.1)
        """,
    )
    with subprocess.Popen(
        command(name), cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        for _ in range(2):
            os.killpg(started.pid, signal.SIGINT)
        time.sleep(0.2)
        assert started.poll() is None
        started.terminate()
        assert started.wait(60) == 128 + signal.SIGSEGV
    assert [each.replays for each in ledger(folder / "signals-run.cgt").graphs] == [3]


def test_a_program_with_modules_of_the_same_names(folder: Path) -> None:
    calls = []
    for name in ("cgtool", "msgspec", "torch"):
        own = folder / os.fsdecode(f"own_{name}_".encode() + b"\xff")
        own.mkdir()
        (own / f"{name}.py").write_text("MINE = True\n")
        text = f"""
            import {name}
            assert {name}.MINE
            if "{name}" != "torch":
                import torch
                torch.ones(1)
            print("own {name}")
            """
        calls.append([sys.executable, str(own / program(own, "main.py", text))])
    # Python that ignores PYTHONPATH.
    calls.append([sys.executable, "-I", "-c", "import torch; print('isolated')"])
    script = " && ".join(map(shlex.join, calls))
    done = run("-o", "names.cgt", "--", "sh", "-c", script, folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["own cgtool", "own msgspec", "own torch", "isolated"]
    found = ledger(folder / "names.cgt")
    assert found.processes == ()
    assert [reason.partition("not recorded: ")[2].partition(": ")[0] for reason in found.lost] == [
        "the program has its own module cgtool",
        "the program has its own module msgspec",
        "its torch is not PyTorch",
    ]


def test_two_runs_with_one_name_and_a_folder_that_vanishes(folder: Path) -> None:
    script = "test -e other || { touch other; $0 -m cgtool run -q -o same.cgt -- true; }"
    done = run("-o", "same.cgt", "--", "sh", "-c", script, sys.executable, folder=folder)
    assert done.returncode == 0, done.stderr
    assert "saved same.cgt\nsaved same-2.cgt\n" in done.stderr
    first, second = (ledger(folder / name) for name in ("same.cgt", "same-2.cgt"))
    assert (first.command, second.command[:2]) == (("true",), ("sh", "-c"))
    assert "imported PyTorch" in second.lost[0]
    gone = folder / "gone"
    gone.mkdir()
    done = run("-o", gone / "x.cgt", "--", "rm", "-r", gone, folder=folder)
    assert done.returncode == 2
    assert "No such file" in done.stderr
    done = run("-o", "/proc/x.cgt", "--", "true", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write /proc/x.cgt" in done.stderr
    for target in ("/dev/null", folder):
        done = run("-o", target, "--", "touch", "it-has-run", folder=folder)
        assert (done.returncode, f"cannot write {target}: it is a d" in done.stderr) == (2, True)
    assert not (folder / "it-has-run").exists()
    assert run(folder, folder=folder).returncode == 2


HALF = """
import sys

class Broken:
    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise ImportError(f"libcudart.so.99: cannot open shared object file ({name})")

def tried(*broken):
    sys.meta_path[:0] = map(Broken, broken)
    try:
        import torch
    except Exception as error:
        print(type(error).__name__, error, "torch" in sys.modules)
    else:
        print(type(torch.__loader__).__name__, torch.ones(2).sum().item())
    del sys.meta_path[:len(broken)]

tried(sys.argv[1])
tried()
# Imported twice: the first one keeps its classes.
first = sys.modules.pop("torch", None)
if first is not None:  # else PyTorch itself may crash
    tried()
    sys.modules["torch"] = first
if sys.argv[2:]:
    from capturing import capture
    capture(2)
"""


@pytest.mark.parametrize("broken", ["torch._utils", "torch.nn"], ids=["early", "late"])
def test_an_import_of_torch_fails_halfway(folder: Path, broken: str) -> None:
    """After an early failure a second import succeeds, unless PyTorch refuses it; after a late one
    it cannot."""
    name = program(folder, "half.py", HALF)
    plain = subprocess.run(
        [sys.executable, name, broken],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    captures = "Loader 2.0" in plain.stdout
    done = run(name, broken, *(["capture"] if captures else []), folder=folder)
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert "libcudart.so.99" in done.stdout
    saved = folder / "half-run.cgt"
    assert saved.exists() == captures
    if captures:
        assert [each.replays for each in ledger(saved).graphs] == [2]
        saved.unlink()


def test_torchrun_on_the_cpu(folder: Path) -> None:
    name = program(
        folder,
        "ranks.py",
        """
        import torch
        import torch.distributed as dist
        from capturing import capture
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        graph, x, y = capture(3 + rank)
        total = y.cpu() * (rank + 1)
        dist.all_reduce(total)
        print(f"rank {rank}: {total.tolist()}\\n", end="", flush=True)
        dist.destroy_process_group()
        """,
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run("-o", "ranks-run.cgt", "--", *torchrun, "--standalone", name, folder=folder)
    assert done.returncode == 0, done.stderr
    # Gloo reports its connections on stdout in some releases.
    printed = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert printed == [f"rank {n}: [6.0, 6.0, 6.0]" for n in (0, 1)]
    found = ledger(folder / "ranks-run.cgt")
    assert sorted(each.replays for each in found.graphs) == [3, 4]
    assert len({each.process for each in found.graphs}) == 2
    # The launcher imports PyTorch too.
    assert len(found.processes) == 3
    assert found.lost == ()


def test_a_program_that_replaces_the_clocks(folder: Path) -> None:
    """As its tests do, by `unittest.mock` or a library that freezes time."""
    name = program(
        folder,
        "clocks.py",
        """
        import time, torch
        from unittest import mock
        from capturing import capture

        clocks = "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"
        with mock.patch.multiple(time, **{each: lambda: 7 for each in clocks}):
            kept = [capture(3)]
        with mock.patch.multiple(time, **{each: mock.MagicMock() for each in (*clocks, "sleep")}):
            kept.append(capture(2))
        kept.append(capture(1))
        """,
    )
    done = run(name, folder=folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "clocks-run.cgt")
    assert (found.lost, [each.replays for each in found.graphs]) == ((), [3, 2, 1])
    began = [each.began_ns for each in found.graphs]
    assert 0 < began[0] < began[1] < began[2] < found.wall_ns
    assert all(0 < each.capture_ns < found.wall_ns for each in found.graphs)


def test_where_nothing_can_be_written_nothing_is_said_to_be_missing_from_the_program(
    folder: Path,
) -> None:
    """Neither the log of the process nor a file that says so: as where a disk has no inodes."""
    name = program(
        folder,
        "no_inodes.py",
        """
        import os, sys
        import torch
        from pathlib import Path
        (folder,) = Path().glob(".cgtool-run-*")
        for path in folder.glob("*.log"):
            path.unlink()
        from capturing import capture
        kept = capture(2)
        """,
    )
    done = run_forked(name, folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "no_inodes-run.cgt")
    (lost,) = found.lost
    assert "not all of its files could be written" in lost
    assert sentence_of(found) == "no CUDA graph was recorded"


def test_a_damaged_log_is_not_a_program_without_pytorch(folder: Path) -> None:
    journals = folder / ".cgtool-run-damaged"
    journals.mkdir()
    (journals / COMMAND).write_bytes(b'{"command": ["python", "x.py"], "started_ns": 1}')
    (journals / f"7-8{LOG}").write_bytes(b"\x03\0\0\0abc")
    (journals / f"9-10{LOG}").touch()
    done = merge(journals, "damaged.cgt", folder=folder)
    assert done.returncode == 0, done.stderr
    found = ledger(folder / "damaged.cgt")
    assert found.lost == (
        "process 7: its records are damaged",
        "process 9: not all of its files could be written",
    )
    assert sentence_of(found) == "no CUDA graph was recorded"


def test_files_that_are_none_of_a_process_and_damaged_counters(folder: Path) -> None:
    name = program(
        folder,
        "kills.py",
        """
        import os, signal
        from capturing import capture
        kept = capture(2)
        os.kill(os.getppid(), signal.SIGKILL)
        """,
    )
    before = {*folder.glob(".cgtool-run-*")}
    run(name, folder=folder)
    (journals,) = {*folder.glob(".cgtool-run-*")} - before
    (journals / f"foreign{LOG}").touch()
    (counters,) = journals.glob(f"*{COUNTERS}")
    counters.write_bytes(b"\xff" * counters.stat().st_size)
    done = merge(journals, "kills.cgt", folder=folder)
    assert done.returncode == 0, done.stderr
    assert [graph.replays for graph in ledger(folder / "kills.cgt").graphs] == [0]


def test_what_was_not_recorded_is_not_compared(folder: Path) -> None:
    """A process that crashes right after a capture leaves no nodes."""
    name = program(
        folder,
        "crashes.py",
        """
        import os
        from capturing import capture
        kept = capture(2)
        os.abort()
        """,
    )
    done = run("--rows", "3", "-o", "crashes.cgt", name, folder=folder)
    assert done.returncode == 128 + signal.SIGABRT
    found = ledger(folder / "crashes.cgt")
    assert (len(found.graphs), found.unread, found.incomplete) == (1, 1, False)

    def said(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "cgtool", *arguments],
            cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    status, text = said("gate", "crashes.cgt", "--max-nodes", "9", "--max-graphs", "1")
    assert status == 5
    assert "the nodes of 1 graph were not recorded" in text
    assert said("gate", "crashes.cgt", "--max-graphs", "1")[0] == 0
    for extra in ((), ("--graph", "0"), ("--raw",)):
        status, text = said("dump", "crashes.cgt", *extra)
        assert status == 2
        assert "the nodes of 1 graph were not recorded" in text
    assert said("dump", "crashes.cgt", "--json")[0] == 0
    status, text = said("diff", "crashes.cgt", "crashes.cgt")
    assert "not recorded in B: process" in text
    assert "torch \n" not in text
    assert "exit status 134 (SIGABRT)" in said("run", "crashes.cgt")[1]


def test_a_gate_does_not_pass_where_captures_are_missing(folder: Path) -> None:
    name = program(
        folder,
        "replaced.py",
        """
        import torch

        class Fake:
            def capture_begin(self, *_, **__): pass
            def capture_end(self): pass

        with torch.cuda.graph(Fake()):
            pass
        """,
    )
    run_forked(name, folder)
    gate = [sys.executable, "-m", "cgtool", "gate", "replaced-run.cgt", "--max-graphs", "9"]
    done = subprocess.run(gate, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "not all captures could be recorded" in done.stdout


def test_a_second_ctrl_c_says_where_the_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has ended the program, and the second arrives before its file is written."""

    def merge(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cgtool.analysis.ledger.merge", merge)
    with pytest.raises(KeyboardInterrupt):
        run_command.run(program=["--", "true"], output=tmp_path / "interrupted.cgt")
    (folder,) = tmp_path.iterdir()
    assert (
        f"interrupted; what was recorded is kept: cgtool run {folder} -o FILE"
        in capsys.readouterr().err
    )

"""``cgtool run --ranks`` and ``--watchdog``, on programs of torchrun on the simulated device."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cgtool.analysis.ledger import merge_folder
from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.analysis.ranks.differences import differences_of
from cgtool.analysis.ranks.rank import calls_of, ranks_of, ranks_text
from cgtool.analysis.ranks.report import rank_findings
from cgtool.findings import page
from cgtool.model import capture_file
from cgtool.model.capture import Capture, Frame
from cgtool.model.journal import LOG, Command, JournalWriter, process_files
from cgtool.model.ledger import COMPILE, Ledger
from cgtool.model.records import Began, Capturing, Stacks

HERE = Path(__file__).parent
REPLACE = msgspec.structs.replace
DIFFERENCES = {
    "skips_a_capture": "did not capture the graph of divergent.py:{dist.all_gather(}",
    "misses_a_collective": "captured 7 nodes, the others 8: all_reduce #3 of 2 (divergent.py:",
    "other_order": "#1 is all_reduce of 64 B float32 (divergent.py:",
    "other_size": "#1 is all_reduce of 64 B float32 (divergent.py:",
    "other_dtype": "#1 is all_reduce of 16 B float16 (divergent.py:",
    "other_kind": "#1 is broadcast of 32 B float32 with root 0 (divergent.py:",
    "other_root": "#1 is broadcast of 32 B float32 with root 1 (divergent.py:",
    "captures_again": " again, and the others did not",
    "capture_fails": "which the others did: AcceleratorError: CUDA error: operation not permitted",
    "replays_less": "ended after 2 replays, the others replayed the graph of divergent.py:",
    "replays_in_another_order": ", the others replayed the graph of divergent.py:",
    "deadlock": "each waits for the other",
}
"""What is said of each scenario of divergent.py."""


def command(*arguments: object, ranks: int, program: Sequence[object]) -> list[str]:
    # Standalone: others may have the port that PyTorch takes before 2.13.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(ranks)]
    cgtool = [sys.executable, "-m", "cgtool", "run", "--device", "simulated"]
    return [*cgtool, *map(str, arguments), "--", *torchrun, *map(str, program)]


def run(
    *arguments: object, ranks: int, program: Sequence[object], folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, ranks=ranks, program=program),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def hung(scenario: str, timeout_s: float, *, ranks: int, folder: Path) -> tuple[str, float, bool]:
    """What ``--watchdog`` says of a scenario of hanging.py, how long after its timeout (s), and
    whether the program goes on; it is ended then."""
    arguments = "--watchdog", timeout_s, "--ranks", "-o", "hang.cgt"
    with subprocess.Popen(
        command(*arguments, ranks=ranks, program=(HERE / "hanging.py", scenario)),
        cwd=folder,
        stdout=(folder / "began").open("w"),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"},
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        late_s = 0.0
        for line in process.stderr:
            lines.append(line)
            if line.startswith("nothing was captured"):
                # Among what gloo says (PyTorch 2.8).
                began = re.findall(r"^\d+\.\d+$", (folder / "began").read_text(), re.M)
                late_s = time.time() - float(began[-1]) - timeout_s
            if line.startswith(f"   {ranks - 1}"):  # the last rank of the table
                break
        goes_on = process.poll() is None
        (journals,) = folder.glob(".cgtool-run-*")
        # Torchrun would wait half a minute for them.
        for pid, _log in process_files(journals, LOG):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        lines += process.stderr
    return "".join(lines), late_s, goes_on


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def divergent(folder: Path) -> tuple[Capture, dict[str, str]]:
    """A run of ranks that differ, and the process group of each scenario."""
    program = HERE / "divergent.py", *DIFFERENCES
    done = run("-q", "-o", "divergent.cgt", ranks=4, program=program, folder=folder)
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    groups = {words[0]: words[1] for words in lines if words and words[0] in DIFFERENCES}
    return capture_file.read(folder / "divergent.cgt"), groups


@pytest.fixture(scope="module")
def correct(folder: Path) -> Capture:
    """A run of six programs that do nothing wrong."""
    done = run("-o", "correct.cgt", ranks=4, program=[HERE / "correct.py"], folder=folder)
    assert done.returncode == 0, done.stderr
    # The numbers are right: the collectives of a graph run in each replay.
    assert done.stdout.count("is right") == 4
    assert "rank-divergent-replay" not in done.stderr
    return capture_file.read(folder / "correct.cgt")


@pytest.mark.parametrize("scenario", DIFFERENCES)
def test_the_first_difference_is_named(scenario: str, divergent) -> None:
    capture, groups = divergent
    differences = differences_of(ranks_of([capture]))
    of_group = [each for each in differences if each.group.split()[0] == groups[scenario]]
    assert len(of_group) == 1, differences
    said = DIFFERENCES[scenario]
    if "{" in said:
        start, _, line = said.partition("{")
        source = (HERE / "divergent.py").read_text().splitlines()
        number = next(at for at, text in enumerate(source, 1) if line.rstrip("}") in text)
        said = f"{start}{number}"
    assert said in of_group[0].sentence
    odd = "rank 0 runs" if scenario == "deadlock" else "rank 3 "
    assert of_group[0].sentence.startswith(odd)
    assert of_group[0].frames, "it is at a line"


def test_correct_programs_have_no_differences(correct: Capture) -> None:
    assert {each.code for each in ledger_findings(correct)} == {"graph-never-replayed"}
    ranks = ranks_of([correct])
    assert [rank.number for rank in ranks] == [0, 1, 2, 3]
    assert differences_of(ranks) == ()


def test_collectives_are_nodes_with_their_kind_size_and_communicator(correct: Capture) -> None:
    rank = ranks_of([correct])[0]
    graph = next(each for each in rank.graphs if len(each.collective_bytes) == 2)
    for number, each in enumerate(calls_of(rank, graph)):
        assert each.signature == ("all_reduce", "float32", None, 64)
        assert each.collective.waits
        assert each.collective.communicator.ranks == (0, 1)
        origin = correct.origins[each.collective.origin or 0]
        assert (origin.op, origin.module) == ("c10d::allreduce_", str(number))
    assert graph.nodes == len(correct.graphs[graph.graph or 0].nodes) == 4
    kinds = {each.kind for of in ledger_of(correct).collectives for each in of.each}
    assert kinds == {"all_reduce", "all_to_all"}


def test_the_screen_and_its_json(divergent, cgtool, folder: Path) -> None:
    file = folder / "divergent.cgt"
    code, screen, _ = cgtool("run", file, "--ranks")
    assert code == 0
    assert "rank 3 captured 7 nodes, the others 8" in screen
    report = json.loads(cgtool("run", file, "--ranks", "--format", "json")[1])
    assert report["schema"] == "cgtool-ranks"
    assert [row["graphs"] for row in report["ranks"]] == [17, 17, 17, 16]
    assert [row["end"] for row in report["ranks"]] == ["finished"] * 4
    findings = json.loads(cgtool("run", file, "--format", "json")[1])["findings"]
    assert sum(each["code"] == "rank-divergent-replay" for each in findings) == len(DIFFERENCES)


def changed(capture: Capture, folder: Path, **ranks: Any) -> list[Path]:
    """A file for each rank, in which no other process has one. ``ranks``: changes of their
    processes, and of their commands, by ``rank0`` and so on; None: there is no file."""
    files: list[Path] = []
    assert capture.ledger is not None
    for rank in ranks_of([capture]):
        changes = ranks.get(f"rank{rank.number}", {})
        if changes is None:
            continue
        command = "python", changes.pop("command", "train.py")
        processes = tuple(
            REPLACE(each, **changes)
            if each is rank.process
            else REPLACE(each, rank=None, world_size=None)
            for each in capture.ledger.processes
        )
        ledger = REPLACE(capture.ledger, processes=processes, command=command)
        files.append(folder / f"rank{rank.number}.cgt")
        capture_file.write(files[-1], REPLACE(capture, ledger=ledger))
    return files


def test_files_of_ranks_are_compared(divergent, cgtool, tmp_path: Path) -> None:
    changed(divergent[0], tmp_path)
    together = json.loads(cgtool("run", tmp_path, "--format", "json")[1])
    expected = differences_of(ranks_of([divergent[0]]))
    assert [each["sentence"] for each in together["differences"]] == [
        each.sentence for each in expected
    ]


def test_a_missing_rank_is_named(divergent, cgtool, tmp_path: Path) -> None:
    changed(divergent[0], tmp_path, rank3=None)
    code, screen, _ = cgtool("run", tmp_path)
    assert code == 0
    assert "3 ranks capture and replay the same collectives" in screen
    assert "not recorded, and not compared: rank 3 of 4" in screen


def ledger_of(capture: Capture) -> Ledger:
    assert capture.ledger is not None
    return capture.ledger


def test_bad_files_of_ranks(divergent, cgtool, tmp_path: Path) -> None:
    capture = divergent[0]

    def said(name: str, **ranks: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        changed(capture, folder, **ranks)
        code, _, error = cgtool("run", folder)
        assert code == 2
        return str(error)

    assert "two of the files have rank 0" in said("twice", rank1={"rank": 0})
    other = {"command": "eval.py"}
    assert "different programs: eval.py, train.py" in said("other", rank2=other)
    larger = {"world_size": 8}
    assert "some files are of 4 ranks, others of 8" in said("larger", rank3=larger)
    older = {f"rank{rank}": {"rank": None, "world_size": None} for rank in range(4)}
    assert "no rank was recorded" in said("older", **older)
    (tmp_path / "none").mkdir()
    code, _, error = cgtool("run", tmp_path / "none")
    assert code == 2
    assert "is not a folder of `cgtool run`" in error
    (folder := tmp_path / "damaged").mkdir()
    (file,) = changed(capture, folder, rank1=None, rank2=None, rank3=None)
    file.write_bytes(file.read_bytes()[:-100])
    assert "not a readable capture file" in cgtool("run", folder)[2]


def test_a_file_of_an_older_version_is_left_out(divergent, cgtool, tmp_path: Path) -> None:
    changed(divergent[0], tmp_path, rank1={"rank": None, "world_size": None})
    code, screen, _ = cgtool("run", tmp_path)
    assert code == 0
    assert "not recorded, and not compared: rank 1 of 4" in screen


def test_clocks_that_differ_change_nothing(divergent, tmp_path: Path) -> None:
    """Times count from the start of a command, by the clock of its machine."""
    captures = []
    for file in changed(divergent[0], tmp_path):
        capture = capture_file.read(file, empty=True)
        ledger = ledger_of(capture)
        late = 10**13 * len(captures)
        processes = tuple(
            REPLACE(each, began_ns=each.began_ns + late, ended_ns=(each.ended_ns or 0) + late)
            for each in ledger.processes
        )
        captures.append(REPLACE(capture, ledger=REPLACE(ledger, processes=processes)))
    expected = [each.sentence for each in differences_of(ranks_of([divergent[0]]))]
    assert [each.sentence for each in differences_of(ranks_of(captures))] == expected


def test_ranks_that_were_ended_are_not_behind(divergent, tmp_path: Path) -> None:
    """Of a run that was killed, some have captured and replayed more than others."""
    capture, group_of = divergent
    ledger = ledger_of(capture)
    killed = tuple(REPLACE(each, ended_ns=None) for each in ledger.processes)
    ended = REPLACE(capture, ledger=REPLACE(ledger, processes=killed))
    groups = {each.group.split()[0] for each in differences_of(ranks_of([ended]))}
    assert groups.isdisjoint(group_of[name] for name in ("captures_again", "replays_less"))
    assert group_of["other_size"] in groups


def test_each_rank_decides_when_it_records_graphs_of_compiled_code(divergent) -> None:
    ledger = ledger_of(divergent[0])
    graphs = tuple(REPLACE(each, owner=COMPILE) for each in ledger.graphs)
    compiled = REPLACE(divergent[0], ledger=REPLACE(ledger, graphs=graphs))
    assert differences_of(ranks_of([compiled])) == ()


def test_names_of_ranks() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([5, 0, 1, 2]) == "ranks 0-2, 5"


HANGS = {
    "replays_less": "rank 0 waits in replay 3 of the group, of the graph of hanging.py:19, for "
    "rank 1, which began 2 replays",
    "crossed_in_a_graph": "each waits for the other",
    "captures_behind_a_collective": "rank 0 waits in `torch.cuda.graph`, before the capture of "
    "hanging.py:19",
}


@pytest.mark.parametrize("scenario", HANGS)
def test_a_hang_is_reported_while_the_program_goes_on(scenario: str, tmp_path: Path) -> None:
    text, _, goes_on = hung(scenario, 2, ranks=2, folder=tmp_path)
    assert goes_on
    assert "nothing was captured or replayed for 2 s; the program goes on" in text
    assert text.count("nothing was captured") == 1
    assert HANGS[scenario] in text
    assert f"in {scenario}\n" in text, "the stacks"
    saved = capture_file.read(tmp_path / "hang.cgt")
    stacks = [each.stacks for each in ledger_of(saved).processes if each.rank is not None]
    assert all(stacks)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_wait_before_a_capture_is_reported_unless_it_ends(goes_on: bool, tmp_path: Path) -> None:
    frames = (Frame("engine.py", 12, "warm_up"),)
    for rank in range(2):
        waits = ("MainThread",) * (rank == 0)
        stacks = Stacks(0, (("MainThread", frames),), 0, waits)
        began = Began(0, 1, 0, (), forked=False, rank=rank, world_size=2)
        writer = JournalWriter(tmp_path, f"{rank}-1")
        writer.append(began, stacks)
        if goes_on:
            writer.append(Capturing(1, 0, "capture", "", None, frames, "MainThread", "global"))
    findings = list(rank_findings(merge_folder(Command((), 0), tmp_path)))
    assert [each.code for each in findings] == ["capture-waits-for-nccl"] * (not goes_on)


def test_a_first_collective_in_a_capture_is_named(tmp_path: Path) -> None:
    document = page("nccl-first-call-in-capture")
    assert document is not None
    (tmp_path / "wrong.py").write_text(document.examples["wrong"])
    command = [sys.executable, "-m", "cgtool", "run", "--device", "simulated", "wrong.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    (graph,) = ledger_of(capture_file.read(tmp_path / "wrong-run.cgt")).graphs
    assert graph.diagnosis is not None
    assert graph.diagnosis.code == "nccl-first-call-in-capture"

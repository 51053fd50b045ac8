"""Ranks of a program compared: `python benchmarks/ranks.py [--ranks 8] [PART ...]`.

`planted`: the twelve differences of tests/cli/ranks/divergent.py, each named at its line; `hangs`:
the five hangs of tests/cli/ranks/hanging.py, each with the rank that the others wait for, and how
long after its timeout that is said; `correct`: six programs that differ only where they may, of
which nothing is said; `files`: the files of 64 ranks with 2,000 graphs each, compared in 10 s and
1 GB. No GPU is needed. Exit code 3 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]


from cgtool.analysis.ranks.differences import differences_of  # noqa: E402
from cgtool.analysis.ranks.rank import ranks_of  # noqa: E402
from cgtool.model import capture_file  # noqa: E402
from cgtool.model.capture import Capture, Entry, Environment, Frame, Graph, Node, Origin  # noqa: E402
from cgtool.model.ledger import (  # noqa: E402
    Collective,
    Collectives,
    Communicator,
    Ledger,
    LedgerGraph,
    Process,
)
from tests.cli.ranks.test_ranks import DIFFERENCES, HERE, hung, run  # noqa: E402

HANGS = {
    "replays_less": "for rank {odd}, which began 2 replays",
    "two_communicators": "rank {odd} waits in replay 1",
    "crossed_in_a_graph": "each waits for the other",
    "runs_eagerly": "for rank {odd}, which began 1 replay",
    "raises": "ended with ValueError: no more data at hanging.py:",
}
TIMEOUT_S, AFTER_S = 5, 10
FILES, GRAPHS, SECONDS, MEGABYTES = 64, 2_000, 10.0, 1_000.0


def planted(ranks: int, folder: Path) -> bool:
    scenarios = HERE / "divergent.py", *DIFFERENCES
    done = run("-q", "-o", "planted.cgt", ranks=ranks, program=scenarios, folder=folder)
    groups = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    found = differences_of(ranks_of([capture_file.read(folder / "planted.cgt")]))
    named = 0
    for scenario, said in DIFFERENCES.items():
        own = [each for each in found if each.group.split()[0] == groups[scenario]]
        is_named = len(own) == 1 and said.partition("{")[0] in own[0].sentence
        named += is_named
        print(f"{'named' if is_named else 'MISSED':6}  {scenario}: {[e.sentence for e in own]}")
    print(f"planted: {named} of {len(DIFFERENCES)} named, {ranks} processes")
    return named == len(DIFFERENCES)


def correct(ranks: int, folder: Path) -> bool:
    program = (HERE / "correct.py",)
    done = run("-o", "correct.cgt", ranks=ranks, program=program, folder=folder)
    found = differences_of(ranks_of([capture_file.read(folder / "correct.cgt")]))
    is_right = done.returncode == 0 and done.stdout.count("is right") == ranks
    print(f"correct: {'right' if is_right else 'WRONG'}, differences: {found}")
    return is_right and not found


def hangs(ranks: int, folder: Path) -> bool:
    named = sum(_hang(scenario, ranks, folder) for scenario in HANGS)
    print(f"hangs: {named} of {len(HANGS)} named within {AFTER_S} s, {ranks} processes")
    return named == len(HANGS)


def _hang(scenario: str, ranks: int, parent: Path) -> bool:
    folder = parent / scenario
    folder.mkdir()
    text, late_s, _ = hung(scenario, TIMEOUT_S, ranks=ranks, folder=folder)
    said = HANGS[scenario].format(odd=ranks - 1)
    is_named = said in text
    said_when = f"{said}, {late_s:.1f} s after its stacks"
    print(f"{'named' if is_named else 'MISSED':6}  {scenario}: {said_when}")
    return is_named and late_s < AFTER_S


def files(_ranks: int, folder: Path) -> bool:
    for rank in range(FILES):
        capture_file.write(folder / f"{rank}.cgt", _capture_of(rank))
    size = sum(path.stat().st_size for path in folder.glob("*.cgt")) / 1e6
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", "run", str(folder), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    report = json.loads(done.stdout)
    print(
        f"files: {FILES} of {GRAPHS:,} graphs, {size:.0f} MB: {seconds:.1f} s, {peak:.0f} MB; "
        f"{report['sentence']}"
    )
    is_named = "rank 41 captured" in report["sentence"]
    return is_named and seconds < SECONDS and peak < MEGABYTES


def _capture_of(rank: int) -> Capture:
    """A rank of a tensor-parallel engine: graphs of 32 layers with two collectives each."""
    frames = tuple(Frame("/engine/model.py", line, "forward") for line in range(1, 65))
    origins = tuple(
        Origin(op="c10d::allreduce_", module=f"layers.{at // 2}", frames=(at,)) for at in range(64)
    )
    nodes = tuple(Node(at, "op", origin=at % 64, call=at) for at in range(64))
    tensor_parallel = rank // 8 * 8
    communicator = Communicator(str(rank // 8), tuple(range(tensor_parallel, tensor_parallel + 8)))
    each = tuple(
        Collective("all_reduce", communicator, "bfloat16", None, True, at) for at in range(64)
    )
    graphs: list[LedgerGraph] = []
    for number in range(GRAPHS):
        # Where it is missing, the sequence is another one.
        lacks = (rank, number) == (41, 1_500)
        sizes = tuple(8192 * (1 + number + at % 2) for at in range(64) if not (lacks and at == 7))
        graphs.append(
            LedgerGraph(
                0,
                number,
                "capture",
                key=f"batch {1 + number}",
                graph=number,
                frames=(0,),
                replays=100,
                nodes=64,
                collectives=int(lacks),
                collective_bytes=sizes,
            )
        )
    process = Process(
        1, 0, (), 0, 1, rank=rank, world_size=FILES,
        last_replays=tuple(at % GRAPHS for at in range(4095)), begun=100 * GRAPHS,
    )  # fmt: skip
    return Capture(
        entry=Entry("python engine.py", "program"),
        environment=Environment("H200"),
        created="",
        cgtool="0.1.0",
        recorder="program",
        graphs=tuple(Graph(f"capture {at}", "step", nodes=nodes) for at in range(GRAPHS)),
        frames=frames,
        origins=origins,
        ledger=Ledger(
            ("python", "engine.py"),
            1,
            0,
            processes=(process,),
            graphs=tuple(graphs),
            collectives=(Collectives(each), Collectives(each[:7] + each[8:])),
        ),
    )


PARTS: dict[str, Callable[[int, Path], bool]] = {
    "planted": planted, "hangs": hangs, "correct": correct, "files": files,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    is_met = True
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            is_met &= PARTS[part](options.ranks, Path(folder))
    return 0 if is_met else 3


if __name__ == "__main__":
    sys.exit(main())

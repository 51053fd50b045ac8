"""A program with 2,000 graphs and a million replays under `cgtool run`: what its ledger takes.

`python benchmarks/large_run.py [GRAPHS] [NODES]`: so many graphs of so many nodes. The recorder
follows graphs that stand in for CUDA's, and reads from each the nodes that a GPU would have: so
this needs no GPU, and the program's own memory is not in the figures. Targets: the process grows by
200 MB, the file has 60 MB, and the table is there 3 s after the program's end. Exit code 3 when one
is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from msgspec import structs  # noqa: E402
from offline_100k import CGTOOL, best_of, measure  # noqa: E402

from cgtool.model.capture import Contents, Environment, Node  # noqa: E402
from cgtool.model.finding import Finding  # noqa: E402
from cgtool.model.journal import Command, JournalWriter, new_folder  # noqa: E402
from cgtool.model.records import Began  # noqa: E402
from tests.builders import huge  # noqa: E402

REPLAYS = 1_000_000
GROWTH_MB, FILE_MB, SECONDS = 200.0, 60.0, 3.0


class Graph:
    """Stands in for `torch.cuda.CUDAGraph`."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return 0, 1


class Device:
    """Stands in for a GPU: every graph has the same nodes, at other addresses."""

    graph_class = Graph
    simulated = False

    def __init__(self, nodes: int) -> None:
        capture = huge(2 * nodes)
        self._functions = capture.functions
        self._graph = capture.graphs[0]
        self._captures = 0
        self._origins: list[int] | None = None

    def watch(self, table: Any, chain: Any, *, compiled: bool) -> Device:
        if self._origins is None:
            chain = [(frame.f_code, frame.f_lasti) for frame in _frames()]
            self._origins = [
                table.add_site(
                    op="aten::addmm",
                    chain=chain,
                    module=(f"layers.{node}", "Linear"),
                    annotations=(),
                    autograd_node=None,
                )
                for node in range(len(self._graph.nodes))
            ]
        self._captures += 1
        return self

    def begin(self, _graph: Any) -> None: ...

    def read(self) -> Callable[[Any], Contents]:
        origins, offset = self._origins, self._captures * 2**24
        assert origins is not None

        def moved(node: Node) -> Node:
            node = structs.replace(node, origin=origins[node.id], stream=None)
            if node.kernel is None:
                return node
            pointers = tuple(
                structs.replace(each, address=each.address + offset, allocation=None, tensor=None)
                for each in node.kernel.pointers
            )
            kernel = structs.replace(node.kernel, pointers=pointers)
            return structs.replace(node, kernel=kernel)

        nodes = tuple(map(moved, self._graph.nodes))
        return lambda _: (nodes, self._graph.edges)

    def storages(self) -> tuple[()]:
        return ()

    def uses(self) -> tuple[()]:
        return ()

    def with_cause(self, finding: Finding) -> Finding:
        return finding

    def follow(self, *_arguments: Any) -> Any: ...

    def stop(self) -> None: ...

    def when_used(self, call: Callable[[], None]) -> None: ...

    def prepare(self) -> None: ...

    def environment(self) -> Callable[[], Environment]:
        return lambda: Environment(device="none")

    def notes_ops_in_python(self) -> bool:
        return False

    def allocated_at(self, addresses: Any) -> dict[int, tuple[Any, ...]]:
        return {}

    def digests(self, tensors: Any) -> Any:
        return [None for _ in tensors]

    def new_allocations(self, *, lines: bool = False) -> tuple[()]:
        return ()

    def functions(self) -> Any:
        return self._functions

    def pool_segments(self, pool: Any) -> tuple[()]:
        return ()

    def reserved_bytes(self) -> None: ...

    def free_bytes(self) -> None: ...

    def stream(self) -> None: ...

    def step_graphs(self, _patches: Any) -> Any: ...

    def time_replays(self, *_arguments: Any) -> None: ...


def _frames() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def program(folder: Path, graphs: int, nodes: int) -> None:
    """The recorded process. Prints what it took."""
    from cgtool.recorder.recorder import Recorder
    from cgtool.torch_compat.patches import Patches

    journal = JournalWriter(folder, f"{os.getpid()}-{time.time_ns()}")
    journal.append(Began(time.time_ns(), os.getpid(), os.getppid(), ("program",), False))
    recorder = Recorder(Device(nodes), journal, Patches())
    kept = []

    def capture() -> None:
        graph = Graph()
        graph.capture_begin()
        graph.capture_end()
        graph.replay()
        kept.append(graph)

    capture()
    before = resident_mb()
    for _ in range(graphs - 1):
        capture()
    captured = resident_mb()
    clock = time.perf_counter()
    for at in range(REPLAYS - graphs):
        kept[at % graphs].replay()
    seconds = time.perf_counter() - clock
    recorder.finish()
    print(json.dumps([captured - before, resident_mb() - before, seconds / REPLAYS * 1e6]))


def main() -> int:
    graphs, nodes = (int(text) for text in [*sys.argv[1:3], "2000", "100"][:2])
    with tempfile.TemporaryDirectory() as name:
        saved = Path(name, "run.cgt")
        folder = new_folder(saved, Command(("program",), time.time_ns()))
        child = [sys.executable, __file__, str(graphs), str(nodes), str(folder)]
        done = subprocess.run(child, check=True, capture_output=True, text=True)
        captured, growth, replay_us = json.loads(done.stdout)
        journals = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        table = Path(name, "table.txt")
        merge = measure([*CGTOOL, "run", "-o", str(saved), str(folder)], table)
        file = saved.stat().st_size / 1e6
        again = best_of([*CGTOOL, "run", str(saved)], table, SECONDS)
        page = best_of([*CGTOOL, "report", str(saved), "-o", str(Path(name, "x.html"))], table, 9)
    print(f"{graphs:,} graphs of {nodes} nodes, {REPLAYS:,} replays")
    print(
        f"process   {captured:6.1f} MB more after the captures, {growth:.1f} MB after the replays"
    )
    print(f"replay    {replay_us:6.2f} us each, without the graph's own")
    print(f"journals  {journals:6.1f} MB, the file {file:.1f} MB")
    for what, cost in (("merge", merge), ("table", again), ("page", page)):
        print(f"{what:<10}{cost.seconds:6.2f} s, {cost.processor:.2f} s of processor", end="")
        print(f", {cost.megabytes:.0f} MB")
    missed = growth > GROWTH_MB or file > FILE_MB or merge.processor > SECONDS
    return 3 if missed else 0


if __name__ == "__main__":
    if len(sys.argv) > 3:
        program(Path(sys.argv[3]), int(sys.argv[1]), int(sys.argv[2]))
    else:
        sys.exit(main())

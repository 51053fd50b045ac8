"""What captures were spent on, whether replays pay for them, and the pools of a program."""

from __future__ import annotations

from msgspec import structs

from cgtool.analysis.gate.evidence import EvidenceContext, of_memory
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import count
from cgtool.analysis.ledger_costs import capture_time
from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.analysis.pools import program_pools
from cgtool.model.capture import Capture, Memory, Pool
from cgtool.model.finding import Finding
from cgtool.model.ledger import COMPILE, LedgerGraph, LedgerPool, PoolStream
from tests.builders import program, timed_serving

MS = 1_000_000
GRAPH = LedgerGraph(
    0, 0, "Engine.capture", frames=(0, 2), capture_ns=25 * MS, instantiate_ns=3 * MS,
    collector_ns=MS, compile_ns=MS, prepare_ns=2 * MS, warm_up_ns=100 * MS, replays=5,
    replay_host_ns=4 * 50_000 + 900_000, first_replay_host_ns=900_000,
)  # fmt: skip
"""Its code takes 20 ms of the host's time, a replay 50 us: a replay saves at most 19.95 ms."""


def found(*entries: LedgerGraph) -> dict[str, Finding]:
    return {finding.code: finding for finding in ledger_findings(program(entries))}


def test_the_parts_of_a_capture_are_the_capture() -> None:
    spent = capture_time([GRAPH, GRAPH])
    assert spent.code_ns == 40 * MS
    assert (spent.warm_up_ns, spent.prepare_ns) == (200 * MS, 4 * MS)
    assert capture_time([structs.replace(GRAPH, warm_up_ns=None)]).warm_up_ns is None


def test_a_capture_pays_after_as_many_replays_as_it_costs() -> None:
    # 100 + 2 + 25 ms, at 19.95 ms a replay.
    finding = found(GRAPH)["capture-does-not-pay"]
    assert finding.evidence[0].startswith("127 ms to capture")
    assert "5 replays saved at most 99.8 ms" in finding.evidence[0]
    assert "pays off after at least 7 replays" in finding.evidence[1]
    later = {"replay_host_ns": 6 * 50_000 + 900_000}
    assert "capture-does-not-pay" not in found(structs.replace(GRAPH, replays=7, **later))
    # Never replayed has a finding of its own.
    unused = structs.replace(GRAPH, replays=0, replay_host_ns=0, first_replay_host_ns=None)
    assert "capture-does-not-pay" not in found(unused)


def test_the_warm_up_of_compiled_code_computes_what_it_was_called_for() -> None:
    compiled = structs.replace(GRAPH, owner=COMPILE, key="0/0 inference")
    assert "capture-does-not-pay" not in found(compiled)


def test_a_replay_saves_nothing_where_the_gpu_takes_longer_than_the_launches() -> None:
    timed = structs.replace(
        GRAPH, replays=4000, replay_host_ns=4000 * 50_000, first_replay_host_ns=50_000
    )
    assert "capture-does-not-pay" not in found(timed)
    timed = structs.replace(timed, timed_replays=4000, replay_gpu_ns=4000 * 30 * MS)
    assert "replays save nothing" in found(timed)["capture-does-not-pay"].evidence[1]


def test_compiling_in_a_capture() -> None:
    assert "capture-includes-autotune" not in found(GRAPH)
    finding = found(structs.replace(GRAPH, compile_ns=20 * MS))["capture-includes-autotune"]
    assert "80%" in finding.reason
    assert finding.evidence == ("20.0 ms of 25.0 ms, in 1 capture",)


def test_the_share_of_gpu_time_can_be_gated() -> None:
    timed = timed_serving()
    assert timed.ledger is not None
    assert timed.ledger.gpu_ns is not None
    share = 6221 * 410_000 / (6221 * 410_000 + 10**9)
    assert abs(count(timed)["graph-share"] - 100 * share) < 0.01
    assert "graph-share" not in count(program([GRAPH]))


def with_pools(entries: list[LedgerGraph], *pools: LedgerPool) -> Capture:
    capture = program(entries)
    memory = Memory(pools=tuple(Pool((0, 1 + at), f"pool {at}") for at in range(len(pools))))
    assert capture.ledger is not None
    ledger = structs.replace(capture.ledger, pools=pools)
    return structs.replace(capture, memory=memory, ledger=ledger)


def test_what_pools_have_and_what_keeps_them() -> None:
    first = structs.replace(GRAPH, pool=(0, 1), began_ns=1, ended_ns=70)
    second = structs.replace(GRAPH, pool=(0, 1), began_ns=2, ended_ns=90)
    other = structs.replace(GRAPH, pool=(0, 2), began_ns=3)
    streams = PoolStream(0, 16, 2, 4 << 20, 1 << 20), PoolStream(0, 32, 1, 2 << 20, 0)
    capture = with_pools(
        [first, second, other, structs.replace(other, ended_ns=80)],
        LedgerPool(0, 0, 90, streams),
        LedgerPool(0, 1, 100, (PoolStream(0, 16, 1, 20 << 20, 5 << 20),)),
    )
    assert capture.ledger is not None
    large, small = program_pools(capture, capture.ledger)
    assert (large.name, large.graphs, large.kept_by, large.streams) == ("pool 1", 2, "1 graph", 1)
    assert (small.graphs, small.kept_by, small.streams) == (2, "tensors", 2)
    assert (small.reserved_bytes, small.used_bytes, small.free_bytes) == (6 << 20, 1 << 20, 5 << 20)


def test_the_memory_of_a_programs_pools_can_be_gated() -> None:
    streams = PoolStream(0, 16, 2, 4 << 20, 1 << 20), PoolStream(0, 32, 1, 2 << 20, 0)
    capture = with_pools([structs.replace(GRAPH, pool=(0, 1))], LedgerPool(0, 0, 90, streams))
    assert (count(capture)["pool-mib"], count(capture)["live-mib"]) == (6, 1)
    context = EvidenceContext(measure([capture]), None, None, None)
    assert of_memory(context, live=False).lines == ("6 MiB: pool 0 of 1 graph, kept by 1 graph",)
    assert "pool-mib" not in count(program([GRAPH]))


def test_pools_that_were_there_one_after_the_other_are_not_added_up() -> None:
    ended = [structs.replace(GRAPH, pool=(0, at), ended_ns=10 * at) for at in (1, 2)]
    graphs = [*ended, structs.replace(GRAPH, pool=(0, 3))]
    sizes = [PoolStream(0, 16, 2, size << 20, 0) for size in (4, 5, 3)]
    pools = [LedgerPool(0, at, 90, (size,)) for at, size in enumerate(sizes)]
    assert count(with_pools(graphs, *pools))["pool-mib"] == 5
    in_use = [
        structs.replace(pool, streams=(structs.replace(size, used_bytes=1 << 20),))
        for pool, size in zip(pools, sizes, strict=True)
    ]
    assert count(with_pools(graphs, *in_use))["pool-mib"] == 12


def test_captures_that_took_no_time_have_no_shares_of_it() -> None:
    """A file may say so."""
    impossible = structs.replace(GRAPH, capture_ns=0, collector_ns=900 * MS)
    assert "collector-in-capture" not in found(impossible)

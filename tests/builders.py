"""Captures made by code: small and readable, huge, and with names that try to break things."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import structs

from cgtool.model.capture import (
    Allocation,
    Block,
    Capture,
    Caveat,
    Copy,
    Edge,
    Entry,
    Environment,
    Fill,
    Frame,
    Function,
    Graph,
    KernelLaunch,
    Memory,
    Node,
    Origin,
    PointerArgument,
    Pool,
    Segment,
    Stream,
    Tensor,
)
from cgtool.model.ledger import (
    COMPILE,
    Diagnosis,
    Ledger,
    LedgerGraph,
    LedgerPool,
    NotedReplays,
    PoolStream,
    Process,
    ReplayPlace,
    Skip,
)

ADD = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEE"
    "viT0_T1_"
)
FILL = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_"
    "T1_"
)
GEMM = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_"
    "alignc4_execute_kernel__5x_cublas"
)
CUTLASS = "_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_nn_align1EEvNT_6ParamsE"
NORM = (
    "_ZN2at6native53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_"
    "kernelIffLb0EEEviT0_PKT_S6_S6_PS3_S7_PS4_"
)
SUM = (
    "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_"
    "functorIfffEclERNS_14TensorIteratorEEUlffE_EEjfLi4ELi4EEEEEvT1_"
)
TRITON = "triton_poi_fused_add_gelu_0"
KERNELS = (ADD, FILL, GEMM, CUTLASS, NORM, SUM, TRITON)
"""Mangled names as an H200 reports them."""

MIB = 1 << 20
TIMED = ("kernel", "memcpy", "memset")

HOSTILE_NAMES = (
    'quote " and \\" and trailing \\',
    "newline\nand\r\nreturn",
    "<b>bold</b> & &lt;entity&gt;",
    "<svg onload=alert(1)>",
    "{record|shape}",
    "\\N \\G \\l \\n",
    "\x00\x01\x1b[31mred\x7f",
    "[bold red]rich markup[/]",
    "\ud800 lone surrogate",
    "\u202e right to left",
    "]]> --> */ ;",
    "",
    "x" * 5000,
    "\x7f \x9b31m \x85 \u2028 \ufeff",
)


def environment(*, simulated: bool = False) -> Environment:
    """An H200, or the simulated device."""
    if simulated:
        return Environment(device="simulated", simulated=True, torch="2.13.0", python="3.11.7")
    return Environment(
        device="NVIDIA H200",
        torch="2.13.0",
        python="3.11.7",
        cuda_runtime="13.0",
        driver="580.82",
        compute_capability=(9, 0),
        multiprocessors=132,
    )


def capture(graphs: Sequence[Graph], *, simulated: bool = False, **fields: object) -> Capture:
    """A capture with everything but the graphs filled in."""
    return Capture(
        entry=Entry("model.py:build", "callable", "model.py", 1, ("Model",)),
        environment=environment(simulated=simulated),
        created="2026-01-01T00:00:00+00:00",
        cgtool="0.1.0",
        graphs=tuple(graphs),
        **fields,  # type: ignore[arg-type]
    )


def timed(recorded: Capture, *, gap_ns: int = 200) -> Capture:
    """With a time on every node that does work: each starts so long after what it waits for."""
    graphs = []
    for graph in recorded.graphs:
        before: dict[int, list[int]] = defaultdict(list)
        for edge in graph.edges:
            before[edge.target].append(edge.source)
        ends: list[int] = []
        nodes = []
        for node in graph.nodes:
            start = max((ends[source] + gap_ns for source in before[node.id]), default=0)
            duration = 1000 + node.id % 7 * 300 if node.type in TIMED else None
            ends.append(start + (duration or 0))
            if duration is not None:
                node = structs.replace(node, start_ns=start, duration_ns=duration)
            nodes.append(node)
        graphs.append(structs.replace(graph, nodes=tuple(nodes)))
    return structs.replace(recorded, graphs=tuple(graphs))


def chain(count: int) -> tuple[Edge, ...]:
    """Each node after the one before."""
    return tuple(Edge(node, node + 1) for node in range(count - 1))


def plain(count: int, edges: Sequence[tuple[int, int]]) -> Capture:
    """Nodes with nothing but a type, and these edges."""
    nodes = tuple(Node(node, "empty") for node in range(count))
    graph = Graph("forward", "forward", nodes=nodes, edges=tuple(Edge(*edge) for edge in edges))
    return capture([graph])


def small() -> Capture:
    """Forward and backward of two blocks: gemm, norm, add, Triton, a copy and a fill."""
    frames = (
        Frame("/home/me/model.py", 12, "Block.forward"),
        Frame("/home/me/model.py", 13, "Block.forward"),
        Frame("/home/me/model.py", 30, "Model.forward"),
        Frame("/home/me/train.py", 7, "loss"),
    )
    origins: list[Origin] = []
    for block in range(2):
        base = f"layers.{block}"
        origins += [
            Origin("aten::addmm", f"{base}.linear", "Linear", (0, 2)),
            Origin("aten::native_layer_norm", f"{base}.norm", "LayerNorm", (1, 2)),
            Origin(None, base, "Block", (1, 2), annotations=("fused gelu",)),
        ]
    forward_count = len(origins)
    origins.append(Origin("aten::sum", "", "Model", (3,)))
    for block in (1, 0):
        base = f"layers.{block}"
        origins += [
            Origin("aten::mm", f"{base}.linear", "Linear", (3,), "AddmmBackward0", 3 * block),
            Origin("aten::fill_.Scalar", None, None, (), "AccumulateGrad"),
        ]
    forward: list[Node] = []
    for origin in range(forward_count):
        kernel = (2, 4, 6)[origin % 3]
        forward.append(
            Node(
                len(forward),
                "kernel",
                origin,
                origin,
                0,
                KernelLaunch(
                    kernel,
                    (16, 1, 1),
                    (128, 1, 1),
                    active_blocks=8,
                    pointers=(
                        PointerArgument(0, 0, 0x7F0000000000, 0),
                        PointerArgument(1, 0, 64, None, 0),
                    ),
                ),
            )
        )
    forward.append(
        Node(len(forward), "memcpy", 6, 6, 0, copy=Copy("dtod", 4096, destination_allocation=0))
    )
    backward: list[Node] = [Node(0, "memset", 8, 0, 0, fill=Fill(512, 0))]
    for number, origin in enumerate(range(7, 11)):
        kernel = (3, 1, 5, 0)[number]
        backward.append(
            Node(
                number + 1,
                "kernel",
                origin,
                number,
                1 if number == 2 else 0,
                KernelLaunch(kernel, (4, 2, 1), (32, 4, 1), 1024),
            )
        )
    memory = Memory(
        pools=(
            Pool(
                (0, 1),
                "shared",
                (
                    Segment(
                        0x7F0000000000,
                        2 * MIB,
                        0,
                        "small",
                        (
                            Block(0x7F0000000000, 4096, 4096, "active_allocated"),
                            Block(0x7F0000001000, 2 * MIB - 4096, 0, "inactive"),
                        ),
                    ),
                ),
            ),
        ),
        allocations=(
            Allocation(
                0x7F0000000000, 4096, 4096, 0, 0, 0, stream=0, origin=0, node=0, label="output 0"
            ),
            Allocation(0x7F0000001000, 8192, 8000, 0, 1, 1, 2, stream=0, origin=7, node=1),
        ),
        tensors=(
            Tensor("parameter layers.0.linear.weight", "parameter", 64, 16384, (64, 64), "float32"),
        ),
    )
    functions = tuple(
        Function(name, registers=32 + index, static_shared_bytes=512)
        for index, name in enumerate(KERNELS)
    )
    return capture(
        [
            Graph(
                "forward",
                "forward",
                pool=0,
                nodes=tuple(forward),
                edges=chain(len(forward)),
                capture_ns=900_000,
                raw_dot="0.dot",
            ),
            Graph(
                "backward",
                "backward",
                pool=0,
                nodes=tuple(backward),
                edges=(Edge(0, 1), Edge(1, 2), Edge(1, 3), Edge(2, 4), Edge(3, 4, 1, 0, 1)),
            ),
        ],
        frames=frames,
        origins=tuple(origins),
        functions=functions,
        streams=(Stream(1, "capture stream"), Stream(2, "side stream")),
        memory=memory,
        warmup_iters=3,
        recorder="in-capture",
        caveats=(Caveat("example", "made by a test"),),
    )


def nested() -> Capture:
    """A conditional node whose body holds a child graph."""
    inner = Graph("step/node 1/node 0", "step", nodes=(Node(0, "memset"),), parent=(1, 0))
    body = Graph("step/node 1", "step", nodes=(Node(0, "child", body=(2,)),), parent=(0, 1))
    step = Graph(
        "step",
        "step",
        nodes=(Node(0, "kernel"), Node(1, "conditional", body=(1,)), Node(2, "host")),
        edges=chain(3),
    )
    return capture([step, body, inner])


def unusual() -> Capture:
    """A node of every type but a plain kernel, on two streams, one with a child graph."""
    origins = (
        Origin("aten::mm", "layers.0", "Linear", (0,)),
        Origin(None, "layers.0", "Linear", (0,)),
        Origin("aten::copy_", None, None, (0,)),
    )
    launch = KernelLaunch(0, (16, 1, 1), (128, 1, 1))
    nodes = (
        Node(0, "alloc"),
        Node(1, "kernel", 0, 0, 0, launch),
        Node(2, "event_record", 1, 1, 0),
        Node(3, "child", 1, 2, 0, body=(1,)),
        Node(4, "event_wait", 1, 3, 1),
        Node(5, "host", 1, 4, 1, detail="host function at 0x7f0012345678"),
        Node(6, "memcpy", 2, 5, 1, copy=Copy("htod", MIB)),
        Node(
            7,
            "conditional",
            1,
            6,
            0,
            detail="bodies: only the driver's DOT text shows them (dump --raw)",
        ),
        Node(8, "empty"),
        Node(9, "semaphore_signal"),
        Node(10, "semaphore_wait"),
        Node(11, "batch_mem_op"),
        Node(12, "type_99"),
        Node(13, "free"),
    )
    edges = [(0, 1), (1, 2), (2, 3), (2, 4), (4, 5), (5, 6), (3, 7), (6, 7), (7, 8), (7, 9)]
    edges += [(8, 10), (9, 11), (10, 12), (11, 12), (12, 13)]
    child = Graph(
        "forward/node 3",
        "forward",
        nodes=(Node(0, "kernel", kernel=launch), Node(1, "memset", fill=Fill(512, 0))),
        edges=chain(2),
        parent=(0, 3),
    )
    forward = Graph("forward", "forward", nodes=nodes, edges=tuple(Edge(*edge) for edge in edges))
    return capture(
        [forward, child],
        frames=(Frame("/home/me/model.py", 12, "f"),),
        origins=origins,
        functions=(Function(GEMM),),
        streams=(Stream(1, "capture stream"), Stream(2, "side stream")),
    )


def hostile() -> Capture:
    """A node for each hostile name, which is kernel, module, file, op, stream and range at once."""
    frames = tuple(Frame(f"/tmp/{name}.py", 3, name) for name in HOSTILE_NAMES)
    origins = tuple(
        Origin(f"aten::{name}", name, name, (index,), name, None, (name,))
        for index, name in enumerate(HOSTILE_NAMES)
    )
    nodes = tuple(
        Node(
            index,
            "kernel" if index % 2 else name or "kernel",
            index,
            stream=index,
            kernel=KernelLaunch(index, (1, 1, 1), (1, 1, 1)),
            shape=name,
            detail=name,
        )
        for index, name in enumerate(HOSTILE_NAMES)
    )
    return capture(
        [
            Graph(HOSTILE_NAMES[0], "forward", nodes=nodes, edges=chain(len(nodes))),
            Graph(HOSTILE_NAMES[1], HOSTILE_NAMES[2], nodes=nodes),
        ],
        frames=frames,
        origins=origins,
        functions=tuple(Function(name) for name in HOSTILE_NAMES),
        streams=tuple(Stream(index, name) for index, name in enumerate(HOSTILE_NAMES)),
    )


def huge(count: int = 100_000, *, layers: int = 96) -> Capture:
    """Realistic content at size: a deep model's forward and backward, ``count`` nodes in all.

    Every fourth step forks to a second stream and joins again; kernels carry pointers.
    """
    ops = ("aten::addmm", "aten::add.Tensor", "aten::native_layer_norm", "aten::gelu", "aten::sum")
    parts = ("attention.qkv", "attention.out", "norm1", "mlp.up", "mlp.down")
    frames = [Frame("/home/me/model.py", 10 + line, "Block.forward") for line in range(40)]
    origins = [
        Origin(ops[part % 5], f"layers.{layer}.{parts[part]}", "Linear", (part * 3, 39))
        for layer in range(layers)
        for part in range(5)
    ]
    first_backward = len(origins)
    origins += [
        Origin("aten::mm", origin.module, "Linear", (38,), "AddmmBackward0", index)
        for index, origin in enumerate(origins)
    ]
    half = count // 2
    allocation_count = max(count // 4, 1)
    graphs = []
    for phase, base in (("forward", 0), ("backward", first_backward)):
        nodes, edges = [], []
        for node in range(half):
            place = node * layers * 5 // half
            origin = base + (place if base == 0 else layers * 5 - 1 - place)
            at = 0x7F0000000000 + node * 512
            if node % 50 == 49:
                nodes.append(Node(node, "memcpy", origin, node, 0, copy=Copy("dtod", 4096, at, at)))
            else:
                pointers = tuple(
                    PointerArgument(word, 8 * word, at + word, (node + word) % allocation_count)
                    for word in range(3)
                )
                nodes.append(
                    Node(
                        node,
                        "kernel",
                        origin,
                        node,
                        1 if node % 4 == 2 else 0,
                        KernelLaunch(
                            node % len(KERNELS), (node % 64 + 1, 1, 1), (128, 1, 1), 0, 8, pointers
                        ),
                    )
                )
            if node == 0:
                continue
            if node % 4 == 2:
                edges.append(Edge(node - 2, node))
            elif node % 4 == 3:
                edges += [Edge(node - 2, node), Edge(node - 1, node)]
            else:
                edges.append(Edge(node - 1, node))
        graphs.append(Graph(phase, phase, pool=0, nodes=tuple(nodes), edges=tuple(edges)))
    allocations = tuple(
        Allocation(
            0x7F0000000000 + index % 512 * 4096,
            4096,
            4000,
            0,
            index * 2 // allocation_count,
            2 * index,
            2 * index + 1023 if index + 512 < allocation_count else None,
            0,
            index % len(origins),
            index % half,
        )
        for index in range(allocation_count)
    )
    pool = Pool(
        (0, 1),
        "shared",
        (
            Segment(
                0x7F0000000000,
                2 * MIB,
                0,
                "small",
                tuple(
                    Block(0x7F0000000000 + index * 4096, 4096, 4000, "active_allocated")
                    for index in range(512)
                ),
            ),
        ),
    )
    return capture(
        graphs,
        frames=tuple(frames),
        origins=tuple(origins),
        functions=tuple(Function(name, registers=40) for name in KERNELS),
        streams=(Stream(1, "capture stream"), Stream(2, "side stream")),
        memory=Memory((pool,), allocations),
    )


# --- programs


def program(entries: Sequence[LedgerGraph], *, skips: Sequence[Skip] = ()) -> Capture:
    """The graphs of a program on a GPU. Those whose ``graph`` is 0 have the one of ``small``."""
    base = small()
    graphs = [
        structs.replace(base.graphs[0], name=f"graph {at}", phase="step")
        for at, entry in enumerate(entries)
        if entry.failure is None
    ]
    numbers = iter(range(len(graphs)))
    return structs.replace(
        base,
        entry=Entry("python serve.py --port 8000", kind="program"),
        recorder="program",
        graphs=tuple(graphs),
        ledger=Ledger(
            ("python", "serve.py", "--port", "8000"),
            wall_ns=71_400_000_000,
            exit_status=0,
            processes=(Process(4711, 1, ("python", "serve.py"), 900_000_000),),
            graphs=tuple(
                structs.replace(entry, number=at, graph=None if entry.failure else next(numbers))
                for at, entry in enumerate(entries)
            ),
            skips=tuple(skips),
        ),
    )


def serving() -> Capture:
    """A program with every kind of graph: compiled code that was recorded again and skipped, an
    engine with a graph for each batch size, graphed callables, and a capture that failed."""
    engine = LedgerGraph(
        0, 0, "Engine.capture", frames=(1, 2), capture_ns=41_000_000, reserved_bytes=2 * MIB
    )
    used = {
        "first_replay_ns": 10**9,
        "last_replay_ns": 31 * 10**9,
        "replayed_at": (ReplayPlace((3,), 64),),
    }
    compiled = LedgerGraph(0, 0, COMPILE, frames=(0, 2), capture_ns=9_000_000, **used)
    moved = (
        "static input data pointer changed.\ninput name: primals_3. data pointer changed from 1 to "
        '2. input stack trace:   File "/home/me/model.py", line 12, in forward\n'
    )
    names = ("rows", "padded_rows")
    padded = (NotedReplays(names, (5, 32), 900), NotedReplays(names, (17, 32), 300))
    full = (NotedReplays((*names, "temperature"), (16, 16, 0.7), 310),)
    batches = [
        structs.replace(
            engine,
            replays=replays,
            same_as=None if at == 0 else 0,
            instantiate_ns=700_000,
            notes=notes,
            **(used if replays else {}),
        )
        for at, (replays, notes) in enumerate([(1200, padded), (310, full), (0, ()), (0, ())])
    ]
    trees = [
        structs.replace(compiled, key="0/0 inference", replays=4000),
        structs.replace(compiled, key="0/0 inference", replays=70, because=moved),
        structs.replace(compiled, key="0/1 inference", replays=1),
        LedgerGraph(0, 0, COMPILE, holds_a_pool=True),
    ]
    callables = LedgerGraph(
        0, 0, "make_graphed_callables", frames=(2,), capture_ns=30_000_000,
        collector_ns=12_000_000, replays=640, **used,
    )  # fmt: skip
    failed = LedgerGraph(
        0, 0, "Engine.capture", frames=(1, 2), capture_ns=5_000_000,
        failure="AcceleratorError: CUDA error: operation not permitted when stream is capturing",
        diagnosis=Diagnosis(
            "sync-item", "`item()` makes the host wait for a stream that is capturing", None, (1, 2)
        ),
    )  # fmt: skip
    skip = (
        "skipping cudagraphs due to mutated inputs (1 instances). Found from : \n   File "
        '"/home/me/train.py", line 7, in loss\n    total += x\n'
    )
    return program([*batches, *trees, callables, failed], skips=[Skip(0, skip, 3)])


def timed_serving() -> Capture:
    """``serving`` with ``--times``: GPU times of replays, and what its captures were spent on."""
    capture = serving()
    assert capture.ledger is not None
    graphs = tuple(
        structs.replace(
            each,
            timed_replays=each.replays,
            replay_gpu_ns=each.replays * 410_000,
            replay_host_ns=each.replays * 9_000 + 250_000,
            first_replay_host_ns=259_000,
            prepare_ns=1_300_000,
            warm_up_ns=88_000_000 if each.owner == COMPILE else None,
            compile_ns=4_000_000 if each.owner == COMPILE else 0,
            instantiate_ns=700_000,
            cgtool_ns=2_100_000,
        )
        for each in capture.ledger.graphs
    )
    process = structs.replace(
        capture.ledger.processes[0],
        graphs_gpu_ns=sum(each.replay_gpu_ns for each in graphs),
        other_gpu_ns=1_000_000_000,
    )
    pools = (
        LedgerPool(0, 0, 71 * 10**9, (PoolStream(0, 16, 3, 62 * MIB, 40 * MIB),)),
        LedgerPool(
            0, 1, 30 * 10**9,
            (PoolStream(0, 16, 1, 2 * MIB, 0), PoolStream(0, 32, 5, 180 * MIB, 0)),
        ),
    )  # fmt: skip
    memory = Memory(pools=(Pool((0, 1), "pool 0"), Pool((0, 2), "pool 1")))
    graphs = tuple(
        structs.replace(each, pool=(0, 2), ended_ns=29 * 10**9)
        if each.owner != COMPILE
        else structs.replace(each, pool=(0, 1))
        for each in graphs
    )
    ledger = structs.replace(capture.ledger, graphs=graphs, processes=(process,), pools=pools)
    return structs.replace(capture, ledger=ledger, memory=memory)

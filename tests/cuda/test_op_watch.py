"""The ops of a capture as noted in C++, against those noted in Python and those that PyTorch's
profiler sees. No GPU: the stream's position is counted by a function in the driver's place."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from cgtool.devices.cuda import driver, nodes, recording
from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.devices.cuda.nodes import FunctionTable, GraphReader
from cgtool.devices.cuda.recorded_device import StorageLife
from cgtool.model.capture import Edge, Function
from cgtool.model.journal import COUNTER, RING
from cgtool.observe import frames
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.captured_calls import CapturedCalls
from cgtool.observe.frames import Chains, frames_of
from cgtool.observe.graphs import GraphFollower, Subscriber
from cgtool.observe.ops import UNKNOWN, OpRecorder
from cgtool.observe.tensors import tensors_in
from cgtool.recorder import notes
from cgtool.recorder.replays import GraphReplays, counted_replay
from cgtool.torch_compat import op_key, op_watch
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.storages import OBJECTS_ARE_OWNERS, StorageRef

STREAM = 7
SLOTS = GraphReplays.cells, GraphReplays.order, GraphReplays.number


@pytest.fixture(scope="session")
def cache():
    """A folder with the kernel, compiled once for all sessions."""
    if not op_key.can_watch_natively():
        pytest.skip("this PyTorch has no unused dispatch key")
    folder = Path(tempfile.gettempdir(), f"cgtool-tests-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patched, (folder / "lock").open("w") as lock:
        patched.setenv("XDG_CACHE_HOME", str(folder))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not op_watch.library().is_file():
            try:
                op_watch.build()
            except op_watch.BuildError as error:
                pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def native(cache):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(cache))
        module = op_watch._Loader().load()
    assert module is not None
    return module


@pytest.fixture(params=[False, True], ids=["v2", "v3"], autouse=True)
def position(request, monkeypatch):
    """Ops that are watched launch one node each: every second query finds one more. From the query
    with the second number on, the capture is invalidated."""
    count, nodes = [0, sys.maxsize], (ctypes.c_uint64 * 1)()
    with_edges = request.param

    def query(stream, status, _id, _graph, found, *more):
        assert stream == STREAM
        ctypes.cast(status, ctypes.POINTER(ctypes.c_int))[0] = 1 if count[0] < count[1] else 2
        nodes[0] = (count[0] + 1) // 2
        ctypes.cast(found, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(nodes)
        ctypes.cast(more[-1], ctypes.POINTER(ctypes.c_size_t))[0] = int(count[0] > 0)
        count[0] += 1
        return 0

    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * (6 + with_edges))(query)
    monkeypatch.setattr(driver, "capture_info", lambda: (function, with_edges))
    monkeypatch.setattr(recording, "current_raw_stream", lambda _device: STREAM)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return count


@contextlib.contextmanager
def recorded(recorder):
    """``finish`` of what this yields makes the record."""
    with recorder.hooks or contextlib.nullcontext(), recorder.watching():
        yield recorder


def facts_of(recorder):
    record = recorder.record
    counts = recorder.positions.counts(range(1, 100_000))
    facts = []
    for call in record.calls:
        start, end = call.launches
        forward = record.forward_of(call)
        facts.append(
            (
                call.name,
                frames_of(call.chain),
                call.module,
                call.autograd_node,
                forward and forward.index,
                call.thread == threading.get_ident(),
                recorder.positions.streams[end],
                counts[end] - counts[start],
            )
        )
    return facts


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        hidden = self.up(x).view(2, 2, 4).transpose(0, 1)
        hidden = nn.functional.silu(hidden.reshape(2, 8), inplace=True)
        return self.norm(x + self.down(hidden))


torch.manual_seed(0)
MODEL = nn.Sequential(Block(), Block())
ENCODER = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
LSTM = nn.LSTM(4, 4, 2)
CONVOLUTION = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2))
X = torch.randn(2, 4)
SPACE = "cgtool_op_watch_tests"


@torch.library.custom_op(f"{SPACE}::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 0


twice.register_autograd(lambda _context, gradient: gradient * 2)
LIBRARY = torch.library.Library(SPACE, "FRAGMENT")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x.sin().cos(), "CompositeImplicitAutograd")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * 3 * x**2


def training():
    optimizers = [
        kind(MODEL.parameters(), lr=1e-3) for kind in (torch.optim.SGD, torch.optim.AdamW)
    ]
    for _ in range(2):
        loss = checkpoint(MODEL, X, use_reentrant=False).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def layers():
    ENCODER(torch.randn(1, 4, 16)).sum().backward()
    LSTM(torch.randn(3, 2, 4))[0].sum().backward()
    CONVOLUTION(torch.randn(2, 3, 8, 8)).sum().backward()
    with torch.no_grad():
        ENCODER.eval()(torch.randn(1, 4, 16))
    ENCODER.train()
    with torch.inference_mode():
        MODEL(X)
    with torch.autocast("cpu", torch.bfloat16):
        MODEL(X).sum().backward()


def views_and_numbers():
    x = torch.randn(4, 4, requires_grad=True)
    y = x * 2
    y[1:3].mul_(2)
    y[:, 0] = 1
    (2**y + 3 * y.t() + torch.where(y > 0, y, 0.0)).sum().backward()
    torch.einsum("ij,jk->ik", y, y)[torch.tensor([0, 1])].max().item()
    torch.fft.rfft(torch.arange(8.0)).abs().sum().tolist()
    y.new_empty(3).fill_(1).nonzero()
    torch._foreach_add([x.detach(), y.detach()], 1.0)
    torch.isin(2, torch.tensor([1, 2]))


def custom():
    x = X.clone().requires_grad_()
    twice(x).sum().backward()
    Cube.apply(torch.ops.cgtool_op_watch_tests.composite(x)).sum().backward()
    (gradient,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    gradient.sum().backward()


def transforms():
    torch.func.vmap(lambda row: row.sin() * 2)(X)
    torch.func.grad(lambda x: (x**2).sum())(X)
    torch.func.jvp(torch.cos, (X,), (X,))


def subclass_and_mode():
    (TwoTensor(X, X) + 1).sum()
    with FlopCounterMode(display=False):
        MODEL(X)


def control_flow():
    torch.ops.higher_order.cond(torch.tensor(True), torch.sin, torch.cos, (X,))


def failures():
    for _ in range(2):
        with pytest.raises(RuntimeError):
            X @ X
        with pytest.raises(IndexError):
            X.requires_grad_(False).sum(dim=7)
        X.neg()


def other_threads():
    thread = threading.Thread(target=training)
    thread.start()
    thread.join()
    X.neg()


def deep_recursion(depth=60):
    return X.neg() if depth == 0 else deep_recursion(depth - 1)


PROGRAMS = [
    training, layers, views_and_numbers, custom, transforms, subclass_and_mode, control_flow,
    failures, other_threads, deep_recursion,
]  # fmt: skip


@pytest.fixture
def unchanged():
    """Programs change no parameter that another run begins with."""
    states = [
        (module, {name: value.clone() for name, value in module.state_dict().items()})
        for module in (MODEL, ENCODER, LSTM, CONVOLUTION)
    ]

    def restore():
        torch.manual_seed(0)
        for module, state in states:
            module.load_state_dict(state)
            module.zero_grad()

    return restore


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_both_ways_make_the_same_record(native, position, unchanged, program):
    unchanged()
    program()
    results = []
    for kind in (recording._Recorder, lambda chains: recording._NativeRecorder(chains, native)):
        recorder = kind(Chains())
        position[0] = 0
        unchanged()
        with recorded(recorder):
            program()
        results.append(facts_of(recorder.finish(int)))
    python, in_cpp = results
    if program is subclass_and_mode and op_key._IS_ABOVE_PYTHON:
        # The ops on both inner tensors belong to the op on the subclass.
        names = [fact[0] for fact in python]
        assert [fact[0] for fact in in_cpp] == [names[0], names[2], *names[4:]]
        return
    for expected, noted in zip(python, in_cpp, strict=False):
        assert noted == expected
    assert len(in_cpp) == len(python)
    assert any(fact[-1] for fact in python)


def known_storages():
    """The tensors that are there before a program, by the address of their memory."""
    tensors = [X]
    for module in (MODEL, ENCODER, LSTM, CONVOLUTION):
        for tensor in (*module.parameters(), *module.buffers()):
            tensors += tensor.data, *([] if tensor.grad is None else [tensor.grad])
    return {tensor.data_ptr(): tensor for tensor in tensors}


@pytest.mark.parametrize("program", [training, layers], ids=lambda each: each.__name__)
def test_both_ways_know_the_memory_from_outside(native, position, unchanged, program):
    """In Python by the arguments that `AccessLog` sees, of the same ops."""
    unchanged()
    program()
    unchanged()
    known = known_storages()
    log = AccessLog()
    recorder = OpRecorder({}, Annotations(), itertools.count().__next__, accesses=log)
    with op_key.watch(recorder.observe):
        program()
    reads, writes = Counter(), Counter()
    addresses = {log.number_of(tensor): address for address, tensor in known.items()}
    for call in recorder.record.calls:
        launches = call.name not in recording._LAUNCH_NOTHING
        access = (launches and call.access) or UNKNOWN
        reads += Counter(addresses[number] for number in access.reads if number in addresses)
        writes += Counter(addresses[number] for number in access.writes if number in addresses)

    unchanged()
    recorder = recording._NativeRecorder(Chains(), native)
    with recorded(recorder):
        program()
    outside = {number: StorageRef.by_key(key) for number, key in recorder.outside().items()}
    assert {ref.address for ref in outside.values()} >= {*reads, *writes}
    place = {number: ref.address for number, ref in outside.items() if ref.address in known}
    seen_reads, seen_writes = Counter(), Counter()
    for _, uses in recorder.finish(int).uses:
        known_uses = {(place[number], is_write) for number, is_write in uses if number in place}
        seen_reads += Counter(at for at, is_write in known_uses if not is_write)
        seen_writes += Counter(at for at, is_write in known_uses if is_write)
    assert seen_reads == reads
    # Batch norm writes its statistics, which no schema says.
    norm = CONVOLUTION[1]
    statistics = {norm.running_mean.data_ptr(), norm.running_var.data_ptr()}
    assert seen_writes == Counter({at: n for at, n in writes.items() if at not in statistics})


def test_memory_of_temporaries_is_not_from_outside(native):
    kept = torch.randn(4)
    recorder = recording._NativeRecorder(Chains(), native)
    with recorded(recorder):
        result = (kept.sin() + 1).cos()
        numpy = torch.from_numpy(np.ones(4)).cos()
    outside = [StorageRef.by_key(key).address for key in recorder.outside().values()]
    # NumPy's memory may outlive the storage.
    assert outside == [kept.data_ptr()]
    assert result.numel() == numpy.numel()


def test_the_line_that_frees_memory():
    seen = []
    weight = torch.nn.Parameter(torch.randn(4))
    lives = [StorageLife(StorageRef(weight), lambda *gone: seen.append(gone))]
    weight.data = torch.zeros(4)
    line = sys._getframe().f_lineno - 1
    if not OBJECTS_ARE_OWNERS:
        for _ in range(2):
            assert not seen
            lives[0].look()
            assert seen.pop()[:2] == ("freed", ())
        return
    (how, chain, time_ns) = seen.pop()
    assert (how, frames_of(chain)[0].line) == ("freed", line)
    assert time.time_ns() - time_ns < 1e9

    view = torch.randn(4, 4)[1:]
    lives.append(StorageLife(StorageRef(view), lambda *gone: seen.append(gone)))
    row = view[0]
    del view
    assert not seen
    del row
    assert len(seen) == 1

    buffer = torch.randn(64)
    lives.append(StorageLife(StorageRef(buffer), lambda *gone: seen.append(gone)))
    lives[-1].look()
    assert len(seen) == 1
    buffer.untyped_storage().resize_(0)
    lives[-1].look()
    assert seen[-1][0] == "resized"


def test_both_ways_know_the_op_that_ended_the_capture(native, position):
    for kind in (recording._Recorder, lambda chains: recording._NativeRecorder(chains, native)):
        recorder = kind(Chains())
        position[:] = 0, sys.maxsize
        with recorded(recorder):
            X.neg()
            position[1] = position[0] + 1
            X.sin()
            X.neg()
        result = recorder.finish(int)
        calls = result.record.calls
        assert list(map(result.was_intact_before, calls)) == [True, True, False]
        assert list(map(result.was_intact_after, calls)) == [True, False, False]


def profiled(program):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        program()
    return [event for event in profiler.events() if event.name.startswith("aten::")]


@pytest.mark.parametrize(
    "program", [training, layers, views_and_numbers], ids=lambda each: each.__name__
)
def test_the_profiler_sees_the_same_ops(native, unchanged, program):
    unchanged()
    program()
    unchanged()
    plain = [event.name for event in profiled(program)]
    unchanged()
    with recorded(recording._NativeRecorder(Chains(), native)) as recorder:
        events = profiled(program)
    assert [event.name for event in events] == plain
    # The profiler also sees what is inside ops, and an op before what autograd calls for it.
    names = [call.name.split(".")[0] for call in recorder.finish(int).record.calls]
    noted = Counter(name for name in names if name.startswith("aten::"))
    assert noted <= Counter(plain)
    assert noted


def test_chains_are_those_of_python(native):
    def chain(depth):
        if depth:
            return chain(depth - 1)
        frame = sys._getframe(1)
        assert native.chain_of(frame, {}, 24) is None
        expected = frames.chain_of(frame)
        assert native.chain_of(frame, frames._is_internal, 24) == expected
        assert native.chain_of(frame, frames._is_internal, 3) == expected[:3]
        return len(expected)

    assert native.chain_of(None, {}, 24) == ()
    assert chain(2) >= 3
    assert chain(40) == 24


def test_nothing_that_the_program_drops_is_kept(native):
    class Local:
        pass

    def function():
        local = Local()
        kept.append(weakref.ref(local))
        result = X.neg()
        kept.append(weakref.ref(result))

    kept, code = [], function.__code__
    references = sys.getrefcount(code)
    with recorded(recording._NativeRecorder(Chains(), native)) as recorder:
        function()
        assert [reference() for reference in kept] == [None, None]
    assert sys.getrefcount(code) > references
    del recorder
    gc.collect()
    assert sys.getrefcount(code) == references


def test_frames_outside_the_capture_are_looked_at_once(native):
    """And found again where the function that began it is over, with what it held."""

    def begins():
        big = torch.ones(1)
        kept.append(weakref.ref(big))
        recorder = recording._NativeRecorder(Chains(), native, None, sys._getframe())
        watching.enter_context(recorder.watching())
        X.neg()
        X.sin()
        return recorder

    def outer():
        recorder = begins()
        assert kept[0]() is not None  # until the next op
        X.cos()
        assert kept[0]() is None
        X.tan()
        return recorder

    kept = []
    with contextlib.ExitStack() as watching:
        recorder = outer()
        X.exp()
    calls = recorder.finish(int).record.calls
    test = test_frames_outside_the_capture_are_looked_at_once.__name__
    places = []
    for call in calls:
        codes = [code.co_name for code, _ in call.chain]
        places.append((call.name.split(":")[-1], *codes[: codes.index(test)]))
    assert places == [
        ("neg", "begins", "outer"), ("sin", "begins", "outer"), ("cos", "outer"), ("tan", "outer"),
        ("exp",),
    ]  # fmt: skip
    lines = [frames_of(call.chain)[0].line for call in calls]
    assert lines == [*sorted(lines[:2]), *sorted(lines[2:4]), lines[4]]
    assert len(set(lines)) == 5


def test_a_capture_keeps_nothing_of_what_has_run_it(native):
    def captured():
        big = torch.ones(1)
        kept.append(weakref.ref(big))
        recorder = recording._NativeRecorder(Chains(), native, None, sys._getframe())
        with recorder.watching():
            X.neg()
        return recorder

    kept = []
    recorder = captured()
    assert kept[0]() is None
    assert len(recorder.finish(int).record.calls) == 1


def test_a_module_is_freed_where_the_program_drops_it(native):
    """Though the record is made later, and names those that live."""
    model = nn.Sequential(nn.ReLU(), nn.Sigmoid())
    with recorded(recording._NativeRecorder(Chains(), native)) as recorder:
        model(X)
    dropped = weakref.ref(model[1])
    del model[1]
    assert dropped() is None
    relu, sigmoid = recorder.finish(int).record.calls
    assert relu.module == ("0", "ReLU")
    assert sigmoid.module == ("", "Sequential")


def test_an_interrupt_while_a_watch_begins(native):
    def interrupted(log):
        native.watch(log)
        if log is not None:
            raise KeyboardInterrupt

    recorder = recording._NativeRecorder(Chains(), native)
    module = SimpleNamespace(Kernel=native.Kernel, watch=interrupted)
    begins = threading.Thread._bootstrap_inner
    with pytest.raises(KeyboardInterrupt), op_key.watch_natively(module, recorder._log):
        pass
    X.neg()
    assert recorder.finish(int).record.calls == []
    assert op_key.can_watch_natively()
    assert threading.Thread._bootstrap_inner is begins


def test_a_watch_that_ends_inside_an_op(native):
    @torch.library.custom_op(f"{SPACE}::ends_watch", mutates_args=())
    def ends_watch(x: torch.Tensor) -> torch.Tensor:
        watching.close()
        return x + 1

    recorder = recording._NativeRecorder(Chains(), native)
    with contextlib.ExitStack() as watching:
        watching.enter_context(recorder.watching())
        assert ends_watch(X).equal(X + 1)
    X.neg()
    assert [call.name for call in recorder.finish(int).record.calls] == [f"{SPACE}::ends_watch"]


def test_ops_are_watched_in_python_afterwards(native):
    names = []

    def observe(op, args, kwargs, run, _caller):
        names.append(str(op))
        return run(*args, **kwargs)

    with recorded(recording._NativeRecorder(Chains(), native)) as recorder:
        X.neg()
    with op_key.watch(observe):
        assert not op_key.can_watch_natively()
        X.sin()
    assert op_key.can_watch_natively()
    with recorded(recording._NativeRecorder(Chains(), native)):
        X.cos()
    assert ([call.name for call in recorder.finish(int).record.calls], names) == (
        ["aten::neg"], ["aten.sin.default"],
    )  # fmt: skip


def test_the_calls_around_most_of_a_capture(native):
    class Model(nn.Module):
        def forward(self, x, times):
            for _ in range(times):
                x = helped(x)
            return x

    def helped(x):
        calls.called(helped.__code__, sys._getframe())
        return x + 1

    def step(x, times):
        helped(x)
        return model(x, times)

    model = Model()
    for before, times, around in ((0, 3, 2), (0, 200, 2), (50, 150, 2), (5, 1, 0), (120, 100, 0)):
        for recorder in (
            recording._Recorder(Chains()),
            recording._NativeRecorder(Chains(), native),
        ):
            calls = CapturedCalls(sys._getframe(), lambda *_: None)
            with recorded(recorder):
                for _ in range(before):
                    X.neg()
                step(X, times)
            calls.stop()
            found = calls.around_most()
            assert [call.code for call in found] == [step.__code__, Model.forward.__code__][:around]
            known = tuple(X.shape) if before < 16 else None
            assert all((call.sizes and call.sizes[0].shape) == known for call in found)


def test_ops_are_placed_in_python_afterwards(native):
    placed, names = [], []

    def observe(op, args, kwargs, run, _caller):
        names.append(str(op))
        return run(*args, **kwargs)

    def put(op, args, kwargs, run):
        placed.append(str(op))
        return op_key.run_observed(op, args, kwargs, run)

    with recorded(recording._NativeRecorder(Chains(), native)):
        X.neg()
    with op_key.place(put), op_key.watch(observe):
        X.sin()
    assert placed == names == ["aten.sin.default"]


def test_the_end_of_a_process_that_is_still_watched(cache):
    script = """
import ctypes, torch
from cgtool.torch_compat import op_key, op_watch
from cgtool.torch_compat.patches import Patches
native = op_watch.load()
address = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p).value
settings = native.Settings(address, False, set(), int, int, None, max)
log = native.Log(settings, 0, None)
assert op_key.can_watch_natively()
watching = op_key.watch_natively(native, log)
watching.__enter__()
x = torch.ones(4)
x.sin()
print(log.calls()[-1][0])
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "aten::sin\n", "")


def test_a_machine_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(op_watch.BuildError, match="no C\\+\\+ compiler `no-such-compiler`"):
        op_watch.build()
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"error: too old\")'")
    with pytest.raises(op_watch.BuildError, match="error: too old"):
        op_watch.build()
    assert op_watch._Loader().load() is None
    op_watch.library().write_bytes(b"no library")
    assert op_watch._Loader().load() is None


def test_nodes_read_in_cpp_are_those_read_in_python(native, monkeypatch):
    types, launched = {11: 0, 12: 0, 13: 5, 14: 0}, {11: 1, 12: 2, 14: 1}  # blocks of each kernel
    edges = {(11, 12): 0, (12, 13): 1 << 16, (13, 14): 0}
    asked = Counter()
    graph, stream = 99, 7
    pointer, number = ctypes.c_void_p, ctypes.c_int

    def function(*arguments):
        return ctypes.CFUNCTYPE(number, *arguments)

    def put(address, values, kind=ctypes.c_uint64):
        if address:
            (kind * len(values)).from_address(address)[:] = list(values)
        return 0

    def count(address, values):
        return put(address, [len(values)], ctypes.c_size_t)

    @function(pointer, pointer, pointer)
    def nodes_of(_graph, nodes, total):
        return put(nodes, types) or count(total, types)

    @function(pointer, pointer, pointer, pointer, pointer)
    def edges_of(_graph, sources, targets, data, total):
        put(sources, [source for source, _ in edges])
        put(targets, [target for _, target in edges])
        return put(data, edges.values()) or count(total, edges)

    @function(pointer, pointer)
    def type_of(node, kind):
        return put(kind, [types[node]], number)

    @function(pointer, pointer)
    def params_of(node, params):
        asked[node] += 1
        if node not in launched:
            return 1
        read = driver.KernelParams.from_address(params)
        read.gridDimX, read.blockDimX = launched[node], 32
        read.func, read.kern = (0, 8) if node == 14 else (7, 0)
        read.blockDimY = read.blockDimZ = 1
        read.kernelParams = 0x1000 + node  # its arguments are the node's own
        return 0

    @function(pointer, pointer, pointer, pointer, pointer, pointer, pointer)
    def capture_info(of, status, _id, captured, *_):
        put(status, [int(of == stream)], number)
        return put(captured, [graph])

    @function(pointer)
    def exchange(mode):
        modes.append(number.from_address(mode).value)
        return put(mode, [2 - modes[-1]], number)

    @function(pointer, pointer)
    def free(bytes_, _total):
        return put(bytes_, [5 << 30])

    @function(pointer, number, pointer)
    def attribute(value, which, of):
        assert of not in unloaded
        return 1 if which == 6 else put(value, [which + 10], number)

    @function(pointer, pointer)
    def name(text, of):
        assert of not in unloaded
        return put(text, [ctypes.cast(spelled, pointer).value])

    @function(pointer, ctypes.c_size_t, pointer, pointer)
    def parameter(of, position, offset, size):
        assert of not in unloaded
        if position == 2:
            return 1
        return put(offset, [position * 8]) or put(size, [8 - position * 4])

    @function(pointer, pointer, number, ctypes.c_size_t)
    def active_blocks(blocks, of, threads, _shared):
        assert of not in unloaded
        return put(blocks, [threads // 8], number)

    @function(pointer, pointer)
    def function_of(function, kernel):
        return put(function, [kernel - 1])

    spelled, modes, unloaded = ctypes.c_char_p(b"_Z4fillv"), [], []
    library = SimpleNamespace(
        cuGraphGetNodes=nodes_of,
        cuGraphGetEdges_v2=edges_of,
        cuGraphNodeGetType=type_of,
        cuGraphKernelNodeGetParams_v2=params_of,
        cuThreadExchangeStreamCaptureMode=exchange,
        cuMemGetInfo_v2=free,
        cuKernelGetFunction=function_of,
        cuFuncGetAttribute=attribute,
        cuFuncGetName=name,
        cuFuncGetParamInfo=parameter,
        cuOccupancyMaxActiveBlocksPerMultiprocessor=active_blocks,
    )
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(driver, "capture_info", lambda: (capture_info, True))
    monkeypatch.setattr(nodes, "relaxed", contextlib.nullcontext)  # for nodes that are no kernels
    native_reader = driver.native_reader(native)
    kernel = Function("_Z4fillv", 14, 11, 13, 10, None, (8, 4))
    functions = SimpleNamespace(
        resolve=lambda params: params.func or params.kern - 1,
        index=lambda _: 0,
        active_blocks=lambda *_: 4,
    )
    nowhere = AddressBook(Trace(), (), (), ())
    in_python, in_cpp = (
        GraphReader(functions, nowhere),
        GraphReader(FunctionTable(native=native_reader), nowhere, native_reader),
    )
    unknown = [(None, None, None)] * len(types)
    for _ in range(2):
        expected, contents = in_python.read(graph, 0), in_cpp.read_captured(stream)
        unloaded.append(7)  # by the program, before its contents are made
        assert contents.handles == expected.handles == list(types)
        read = contents.nodes(unknown)
        assert read == expected.nodes(unknown)
        assert [node.type for node in read] == ["kernel", "kernel", "empty", "kernel"]
        assert [node.kernel.grid[0] for node in read if node.kernel] == [1, 2, 1]
        assert contents.edges == expected.edges == (Edge(0, 1), Edge(1, 2, type=1), Edge(2, 3))
    assert in_cpp.functions.functions == [kernel]
    assert in_cpp.functions.layout(7) == [(0, 8), (8, 4)]
    assert native_reader.free_bytes() == 5 << 30
    assert modes == [2, 0] * (len(modes) // 2) != []  # what the mode was is restored
    assert in_cpp.read_captured(stream + 1) is None
    asked.clear()
    launched[12] = 3
    assert in_cpp.read_captured(stream).nodes(unknown)[1].kernel.grid == (3, 0, 0)
    assert asked == {11: 1, 12: 1, 14: 1}
    del launched[14]
    assert "not readable" in in_cpp.read_captured(stream).nodes(unknown)[3].detail


@pytest.mark.parametrize("in_cpp", [False, True])
def test_replays_are_counted_alike(request, in_cpp):
    module = request.getfixturevalue("native") if in_cpp else None

    class CudaGraph:
        def replay(self):
            if self.fails:
                raise RuntimeError("invalid argument")

        fails = False

    class Journal:
        buffer = bytearray(COUNTER.size)
        order = memoryview(bytearray((1 + RING) * 8)).cast("Q")

        def counter(self, _number):
            return self.buffer, 0

        def append(self, record):
            self.records.append(record)

        protected = contextlib.nullcontext

    journal, graphs, first, noted = Journal(), {}, [], []
    journal.records = []

    def unseen(graph):
        if graph.fails:
            return None
        graphs[id(graph)] = found = GraphReplays(3)
        found.count_in(journal)
        return found

    original = CudaGraph.replay
    counters = SimpleNamespace(add=lambda *values: noted.append(values))
    addresses = SimpleNamespace(look=lambda _graph: None)
    CudaGraph.replay = counted_replay(
        original,
        graphs,
        unseen,
        lambda *args: first.append(args),
        addresses,
        journal,
        counters,
        lambda: None,
        module,
    )
    graph, unknown = CudaGraph(), CudaGraph()
    before = time.time_ns()
    for _ in range(2000):
        assert graph.replay() is None
    replay = graph.replay
    notes.listen(True)
    notes.note(batch=17)
    replay()
    notes.listen(False)
    after = time.time_ns()
    count, begin, end, spent = COUNTER.unpack(journal.buffer)
    assert count == 2001
    assert before - 1_000_000 <= begin <= end <= after + 1_000_000  # two clocks
    assert 0 < spent <= after - before + 1_000_000
    assert [args[1] for args in first] == [graph]
    (values,) = noted
    assert values[0] == 3 and values[2] == {"batch": 17} and values[3] == end
    # In one line: the first 8, 32 up to number 1,000, and then numbers 1,497 and 1,996.
    assert [seen for _, seen in graphs[id(graph)].places.values()] == [42]
    assert [record.seen for record in journal.records] == [1, 2, 4, 8, 16, 32]
    (frames,) = {record.frames[:1] for record in journal.records}
    assert Path(frames[0].file).name == "test_op_watch.py"
    unknown.fails = True
    with pytest.raises(RuntimeError, match="invalid argument"):
        unknown.replay()
    with pytest.raises(TypeError):
        graph.replay(1)
    with pytest.raises(TypeError):
        CudaGraph.replay()
    assert COUNTER.unpack(journal.buffer)[0] == 2001
    # A graph that was not known is in the order from its second replay on.
    assert journal.order[0] == 2000
    assert list(journal.order[1:2001]) == [3] * 2000
    graphs[id(graph)].number = 7  # C++ has read it already
    for _ in range(RING):
        graph.replay()
    assert journal.order[0] == 2000 + RING
    assert set(journal.order[1:]) == ({3} if in_cpp else {7})
    reference = weakref.ref(unknown)
    del unknown
    gc.collect()
    assert reference() is None


def test_what_counts_replays_is_freed_with_them(native):
    class Owner:
        pass

    owner = Owner()
    graphs = {1: owner}
    owner.counts = native.counted_replay(
        print, graphs, {}, print, print, print, *SLOTS, 0, 1, 1, 1, 1
    )
    reference = weakref.ref(owner)
    del owner, graphs
    gc.collect()
    assert reference() is None


def test_replays_are_counted_for_the_graph_that_is_there_now(native):
    """After a reset, or where another graph has the address of one that is gone."""

    class Graph:
        def replay(self):
            pass

    class Counts(Subscriber):
        def replay(self, original, graphs):
            def ignore(*_):
                pass

            self.ended = []
            return native.counted_replay(
                original,
                graphs,
                {},
                lambda _: None,
                ignore,
                ignore,
                *SLOTS,
                0,
                0,
                1 << 60,
                0,
                1 << 60,
            )

        def gone(self, state, end):
            self.ended.append((state.number, end))

    for name in ("capture_begin", "capture_end", "reset"):
        setattr(Graph, name, Graph.replay)
    buffers = [bytearray(COUNTER.size) for _ in range(60)]
    order = memoryview(bytearray(16 * 8)).cast("Q")
    journal = SimpleNamespace(counter=lambda number: (buffers[number], 0), order=order)

    def counted(number):
        state = GraphReplays(number)
        state.count_in(journal)
        return state

    def counts():
        return [COUNTER.unpack(buffer)[0] for buffer in buffers]

    subscriber = Counts()
    with Patches() as patches:
        follower = GraphFollower(Graph, subscriber, patches)
        graph = Graph()
        graph.replay()
        follower.follow(graph, counted(0))
        graph.replay()
        graph.replay()
        graph.reset()
        graph.replay()
        follower.follow(graph, counted(1))
        graph.replay()
        follower.follow(graph, counted(2))
        graph.replay()
        follower.forget()
        graph.replay()
        assert counts()[:3] == [2, 1, 1]
        del graph
        graphs = [Graph() for _ in range(40)]
        for number, graph in enumerate(graphs, 3):
            follower.follow(graph, counted(number))
        for _ in range(2):
            for graph in graphs:
                graph.replay()
        assert counts()[3:43] == [2] * 40
        del graphs[5], graph
        assert subscriber.ended == [(0, "reset"), (8, "freed")]
        others = [Graph() for _ in range(10)]
        for graph in graphs + others:
            graph.replay()
        assert counts()[3:43] == [3] * 5 + [2] + [3] * 34


def test_launches_of_generated_code_are_noted_alike(native, position, tmp_path):
    """In C++ and in Python: the line of the generated code, the calls that lead to it, and the
    nodes, also of a launch that raises."""

    class Kernel:
        def run(self, *args, stream, fails=False):
            if fails:
                raise ValueError("out of resources")
            return args, stream

    file = tmp_path / "torchinductor_test" / "output_code.py"
    names = {}
    exec(compile("def call(run):\n    return run()\n", str(file), "exec"), names)
    kernel, facts = Kernel(), []
    for kind in (recording._Recorder, lambda chains: recording._NativeRecorder(chains, native)):
        recorder = kind(Chains())
        position[0] = 0
        with Patches() as patches, recorded(recorder):
            patches.set(Kernel, "run", recorder.launching(Kernel.run))
            assert names["call"](lambda: kernel.run(1, 2, stream=STREAM)) == ((1, 2), STREAM)
            with pytest.raises(ValueError, match="out of resources"):
                kernel.run(stream=STREAM, fails=True)
            X.neg()
        recorder = recorder.finish(int)
        counts = recorder.positions.counts(range(1, 100))
        facts.append(
            [
                (launch.site and launch.site[0].co_filename, frames_of(launch.chain),
                 *(counts[each] for each in launch.launches))
                for launch in recorder.kernels
            ]
        )  # fmt: skip
        assert [call.name for call in recorder.record.calls] == ["aten::neg"]
    assert facts[0] == facts[1]
    assert len(facts[0]) == 2


def test_collectives_are_noted_alike(native, position):
    """In C++ and in Python: the op is recorded, and its arguments are read before it runs."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x, seen, names = torch.ones(4), [], []

    def note(op, args, kwargs):
        # Not the arguments themselves: PyTorch's `ScriptObject` that is the last to hold a process
        # group joins gloo's thread with the GIL, which that thread may be waiting for.
        seen.append((op.name(), [each.tolist() for each in tensors_in((args, kwargs))]))

    op_key.note_collectives(note)
    try:
        for make in (recording._Recorder, lambda each: recording._NativeRecorder(each, native)):
            recorder = make(Chains())
            with recorded(recorder):
                dist.all_reduce(x * 2)
                all_reduce(x, "sum", dist.group.WORLD).wait()
            calls = recorder.finish(lambda: None).record.calls
            names.append([call.name for call in calls if "c10d" in call.name])
            assert [Path(call.chain[0][0].co_filename).name for call in calls[:2]] == [
                "test_op_watch.py"
            ] * 2
    finally:
        op_key.note_collectives(None)
        dist.destroy_process_group()
    assert names[0] == names[1]
    assert names[0][:2] == ["c10d::allreduce_"] * 2
    half = len(seen) // 2
    assert [each[0] for each in seen[:half]] == [each[0] for each in seen[half:]]
    assert seen[0] == ("c10d::allreduce_", [[2.0] * 4])

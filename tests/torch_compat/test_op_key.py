"""Ops that are watched on a dispatch key run as in plain eager, and are those that a mode sees."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cgtool.devices.cuda.capabilities import probe
from cgtool.torch_compat import op_key
from cgtool.torch_compat.private import key_set_of, parse_key, redispatcher
from cgtool.torch_compat.shared_kernels import rehearsed

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
_SILENT = ("aten::detach", "aten::alias")


class Log:
    def __init__(self):
        self.names = []
        self.callers = []
        self.threads = set()

    def __call__(self, op, args, kwargs, run, caller):
        self.names.append(op.name())
        self.callers.append(caller.f_code.co_name if caller is not None else None)
        self.threads.add(threading.get_ident())
        return run(*args, **kwargs)


class Mode(TorchDispatchMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.log(func, args, kwargs or {}, func, sys._getframe().f_back)


def watched(function):
    log = Log()
    with op_key.watch(log):
        result = function()
    return log, result


def seen_by_mode(function):
    log = Log()
    with Mode(log):
        function()
    return comparable(log)


def comparable(log):
    """Names without those that tell a mode from plain eager: a mode sees ``detach``, ``view`` where
    plain eager reshapes, and ``to`` whole inside ``torch.func.vmap``."""
    other = {"aten::_reshape_alias": "aten::view", "aten::to.dtype": "aten::_to_copy"}
    names = [name for name in log.names if not name.startswith(_SILENT)]
    return [other.get(name, name) for name in names]


def assert_same(left, right):
    for a, b in zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True):
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert a.requires_grad == b.requires_grad
            assert torch.equal(a.detach(), b.detach())
        else:
            assert type(a) is type(b) and a == b


def test_this_pytorch_is_supported():
    assert op_key.is_supported()


def test_threads_that_ask_at_once_get_the_same_answer():
    asked = threading.Barrier(6)
    interval = sys.getswitchinterval()

    def ask(_: int) -> bool:
        asked.wait()
        return op_key.is_supported()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as threads:
            for _ in range(20):
                op_key.is_supported.cache_clear()
                assert all(threads.map(ask, range(6)))
    finally:
        sys.setswitchinterval(interval)


def test_doctor_says_how_ops_are_recorded(monkeypatch):
    def row():
        return next(row for row in probe() if row.name == "op recorder")

    assert row().state == "available"
    monkeypatch.setattr(op_key, "is_supported", lambda: False)
    assert row().state == "degraded" and "TorchDispatchMode" in row().how


HALF = torch.full((), 3.0, dtype=torch.float16)
BYTES = torch.tensor([1, 200], dtype=torch.uint8)
FLAGS = torch.tensor([True, False])
NUMBERS = [
    lambda: HALF * 2.5,
    lambda: 2.5 * HALF,
    lambda: HALF - 1,
    lambda: 1 - HALF,
    lambda: torch.true_divide(HALF, 3),
    lambda: torch.divide(HALF, 3.3),
    lambda: torch.multiply(HALF, 3.3),
    lambda: torch.subtract(HALF, 1, alpha=2),
    lambda: torch.add(HALF, 1, alpha=2),
    lambda: HALF // 2,
    lambda: HALF % 2,
    lambda: HALF**2,
    lambda: 2**HALF,
    lambda: torch.where(HALF > 1, HALF, 0.5),
    lambda: torch.where(FLAGS, 1, 2.0),
    lambda: torch.less(HALF, 3.5),
    lambda: torch.eq(HALF, 3),
    lambda: HALF.clone().add_(1).mul_(2.5),
    lambda: BYTES * 300.5,
    lambda: BYTES + 100,
    lambda: BYTES & 3,
    lambda: BYTES << 1,
    lambda: FLAGS + 1,
    lambda: FLAGS * True,
    lambda: FLAGS | True,
    lambda: HALF * 0.0,
    lambda: 1 / (HALF * -0.0),
    lambda: 1 / (HALF * 0.0),
    lambda: (HALF * math.inf).isinf(),
    lambda: torch.ones((), dtype=torch.float32) * 1j,
    lambda: HALF * True,
    lambda: torch.copysign(HALF, -1.0),
    lambda: torch.float_power(HALF, 2),
    lambda: torch.xlogy(HALF, 2),
    lambda: torch.maximum(HALF, torch.tensor(2.0)),
    lambda: torch.clamp(HALF, min=3.5),
    lambda: torch.bitwise_and(BYTES, 2),
    lambda: torch.lerp(HALF, HALF * 2, 0.5),
]


@pytest.mark.parametrize("function", NUMBERS)
def test_a_number_has_the_dtype_and_value_of_plain_eager(function):
    _, result = watched(function)
    assert_same(result, function())


X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
TOKENS = torch.linspace(-1, 1, 2 * 6 * 8).reshape(2, 6, 8)
torch.manual_seed(0)
ENCODER = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
CONVOLUTION = torch.nn.Sequential(
    torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
)


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp() * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def gradients(module, loss):
    parameters = list(module.parameters())
    return torch.autograd.grad(loss, parameters)


def in_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.nn.functional.linear(X, X)


SAME_AS_A_MODE = {
    "factories": lambda: (torch.zeros(2), torch.arange(3), torch.full((2,), 0.5)),
    "linear": lambda: torch.nn.functional.linear(X, X, X[:, 0]),
    "convolution": lambda: gradients(CONVOLUTION, CONVOLUTION(TOKENS[:, None]).sum()),
    "custom function": lambda: torch.autograd.grad(Custom.apply(X).sum(), [X]),
    "autocast": in_autocast,
    "einsum": lambda: torch.einsum("ij,kj->ik", X, X),
    "sparse": lambda: torch.eye(4).to_sparse() @ X.t(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3) * 2),
    "vmap": lambda: torch.func.vmap(lambda x: x.sum() * 2)(X),
    "grad": lambda: torch.func.grad(lambda x: (x.sin() * 2).sum())(X),
    "hessian": lambda: torch.func.hessian(lambda x: (x**3 * 2.0).sum())(X[0]),
    "jvp": lambda: torch.func.jvp(lambda x: x**3 * 2.0, (X,), (torch.ones(3, 4),)),
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: (x * 2.0).sum()))(X),
}


PARTS_OF_TO = ("aten::to.dtype_layout", "aten::_to_copy", "aten::zeros", "aten::expand")


@pytest.mark.parametrize("name", SAME_AS_A_MODE)
def test_the_ops_that_a_mode_sees(name):
    function = SAME_AS_A_MODE[name]
    log, result = watched(function)
    assert_same(result, function())
    ops, by_mode = comparable(log), seen_by_mode(function)
    if "aten::to.dtype_layout" in by_mode:
        # A mode sees it whole where forward AD calls it; here it is the copy that it makes.
        assert "aten::to.dtype_layout" not in ops
        ops, by_mode = ([op for op in seen if op not in PARTS_OF_TO] for seen in (ops, by_mode))
    assert ops == by_mode


def test_a_transformer_layer_trains_with_its_own_ops():
    def train():
        return gradients(ENCODER, ENCODER(TOKENS).sum())

    log, result = watched(train)
    assert_same(result, train())
    # Under a mode gradients are summed out of place.
    in_place = [name.replace("add_.", "add.") for name in comparable(log)]
    assert in_place == [name.replace("add_.", "add.") for name in seen_by_mode(train)]
    assert "aten::addmm" in log.names and "aten::linear" not in log.names


def test_ops_of_plain_eager_that_a_mode_replaces():
    product = X.prod()
    log, _ = watched(lambda: torch.autograd.grad(product, [X], retain_graph=True))
    assert "aten::nonzero" in log.names and "aten::cumprod" not in log.names


def test_inference_mode_shows_what_composite_ops_are_made_of():
    with torch.inference_mode():
        log, _ = watched(lambda: torch.linalg.inv(torch.eye(3)))
        # C++ calls `to` with a device here.
        converted, _ = watched(lambda: X.softmax(-1, dtype=torch.float64))
    assert "aten::linalg_inv_ex" in log.names and "aten::linalg_inv" not in log.names
    assert converted.names == ["aten::_to_copy", "aten::_softmax"]


def test_gradients_add_up_in_place():
    x = torch.ones(3, requires_grad=True)
    x.sum().backward()
    kept = x.grad
    watched(lambda: (x * 2).sum().backward())
    assert x.grad is kept and kept.tolist() == [3, 3, 3]


def test_checkpointing_stops_its_recomputation_early():
    def run():
        y = checkpoint(lambda x: (x * x).sin(), X, use_reentrant=False)
        return torch.autograd.grad(y.sum(), [X])

    _, result = watched(run)
    assert_same(result, run())


class Twice(torch.Tensor):
    """A wrapper subclass without storage."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = pytree.tree_map_only(Twice, lambda tensor: tensor.inner, args)
        return func(*args, **(kwargs or {}))


def test_tensor_subclasses_take_part():
    log, result = watched(lambda: Twice(torch.ones(2)) * 2)
    assert result.tolist() == [2, 2]
    assert log.names == ["aten::ones", "aten::mul.Tensor"]


def test_ops_on_the_parts_of_a_subclass_are_observed():
    with warnings.catch_warnings(action="ignore"):
        parts = [torch.ones(2, 3), torch.ones(4, 3)]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    shapes = []

    def observe(op, args, kwargs, run, caller):
        shapes.append((op.name(), type(args[0]), tuple(args[0].shape)))
        return run(*args, **kwargs)

    with op_key.watch(observe):
        jagged * 2
    assert shapes == [("aten::mul.Tensor", torch.Tensor, (6, 3))]


def test_a_mode_of_the_user_takes_part():
    inner = Log()

    def run():
        with Mode(inner):
            return torch.ones(2) * 2

    log, result = watched(run)
    assert result.tolist() == [2, 2]
    assert log.names == inner.names == ["aten::ones", "aten::mul.Tensor"]


def test_a_custom_op_is_one_op():
    with torch.library._scoped_library("cgtool_test_op_key", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CPU")
        log, result = watched(lambda: torch.ops.cgtool_test_op_key.double(torch.ones(2)))
        assert result.tolist() == [2, 2]
        assert log.names == ["aten::ones", "cgtool_test_op_key::double"]


def test_the_caller_is_the_frame_that_called_the_op():
    def user():
        return torch.nn.functional.linear(X, X)

    log, _ = watched(user)
    assert log.names == ["aten::t", "aten::mm"]
    assert log.callers == ["user", "user"]


def test_errors_reach_the_caller_and_watching_goes_on():
    def run():
        with contextlib.suppress(RuntimeError):
            torch.ones(2) + torch.ones(3)
        with pytest.raises(IndexError):
            torch.ones(2).select(5, 0)
        return torch.ones(2).sin()

    log, _ = watched(run)
    assert log.names[-1] == "aten::sin"


def test_an_observer_that_raises_refuses_the_op():
    def refuse(op, args, kwargs, run, caller):
        raise ValueError(op.name())

    with op_key.watch(refuse), pytest.raises(ValueError, match="aten::sin"):
        X.sin()
    assert X.sin().shape == X.shape


def test_the_observers_own_ops_are_not_observed():
    names = []

    def observe(op, args, kwargs, run, caller):
        names.append(op.name())
        torch.ones(1).exp()
        return run(*args, **kwargs)

    with op_key.watch(observe):
        X.sin()
    assert names == ["aten::sin"]


def test_only_while_it_is_entered():
    log, _ = watched(lambda: None)
    X.sin()
    assert log.names == []


def test_a_number_wrapped_on_a_gpu_ends_the_inspection_of_its_kernel_alone():
    """PyTorch passes no Python kernel a number that is wrapped on another device than the CPU, and
    the kernels of ``2 ** x`` and ``isin(2, x)`` call themselves with one. Kernels of the CPU, with
    tensors on `meta`, do so without a GPU."""
    power, exponents = torch.ops.aten.pow.Scalar, torch.ones(3, device="meta")
    on_cpu = key_set_of(parse_key("CPU"))
    called, results = [], []

    def run():
        if not results:
            results.append("raises")
            redispatcher(power)(on_cpu, 2.0, exponents)
        return torch.ones(3) + 1

    def observe(op, args, kwargs, run_op, caller):
        if op.name() == "aten::neg":
            return op_key.run_inspected("test::op", lambda op, *_: called.append(op.name()), run)
        return run_op(*args, **kwargs)

    with op_key.watch(observe):
        first = -torch.ones(3)
        inspected = len(called)
        second = -torch.ones(3)
    assert inspected and len(called) == inspected
    assert first.tolist() == second.tolist() == [2.0] * 3


def test_an_observer_inside_another_one_sees_the_same_ops():
    outer, inner = Log(), Log()
    with op_key.watch(outer):
        with op_key.watch(inner):
            X.sin()
        X.cos()
    assert inner.names == ["aten::sin"]
    assert outer.names == ["aten::sin", "aten::cos"]
    assert outer.callers[0] == inner.callers[0]


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_thread_that_starts_meanwhile_is_watched():
    log, _ = watched(lambda: in_thread(X.sin).join())
    assert log.names == ["aten::sin"]
    in_thread(X.cos).join()
    assert log.names == ["aten::sin"]


def test_a_thread_that_started_before_is_watched_on_request():
    go, done = threading.Event(), threading.Event()

    def work():
        go.wait()
        X.sin()
        done.set()

    def run():
        go.set()
        done.wait()

    with op_key.watch_new_threads():
        thread = in_thread(work)
    log, _ = watched(run)
    thread.join()
    assert log.names == ["aten::sin"]


def test_a_thread_that_worked_between_two_watches():
    """For example a thread of a pool that an iteration before the watched one started."""
    with op_key.watch_new_threads(), ThreadPoolExecutor(1) as pool:
        log, _ = watched(X.cos)
        pool.submit(X.tan).result()
        pool.submit(X.neg).result()
        again, _ = watched(lambda: pool.submit(X.sin).result())
    assert (log.names, again.names) == (["aten::cos"], ["aten::sin"])


def test_cond_is_one_op():
    def run():
        return torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),))

    with torch.compiler.set_stance("force_eager"):
        log, result = watched(run)
    assert result.tolist() == [2, 2]
    assert log.names[-1] == "cond"


def test_ops_of_saved_tensor_hooks_are_ops_of_their_own():
    def run():
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2):
            return torch.autograd.grad(X.sin().sum(), [X])

    log, result = watched(run)
    assert_same(result, run())
    assert sorted(comparable(log)) == sorted(seen_by_mode(run))
    assert log.names.count("aten::mul.Tensor") == 2


def test_support_is_tested_on_the_cpu_and_in_any_grad_mode():
    for context in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        op_key.is_supported.cache_clear()
        with context:
            assert op_key.is_supported()


def test_support_is_tested_under_a_mode_that_was_there_before():
    code = """
from torch.utils.flop_counter import FlopCounterMode
from cgtool.torch_compat import op_key
with FlopCounterMode(display=False):
    assert op_key.is_supported()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_first_observer_of_a_process_sees_ops():
    op_key.is_supported.cache_clear()
    log, _ = watched(lambda: torch.ones(2).sin())
    assert log.names == ["aten::ones", "aten::sin"]


def test_a_kernel_is_rehearsed_up_to_a_number_wrapped_on_the_device():
    x = torch.ones(3)
    for op, args in (
        (torch.ops.aten.pow.Scalar, (2.0, x)),
        (torch.ops.aten.isin.Scalar_Tensor, (2.0, x)),
    ):
        calls = rehearsed(op, args, {}, lambda _tensor: False)
        assert calls is not None and calls[0].name == "aten::scalar_tensor"

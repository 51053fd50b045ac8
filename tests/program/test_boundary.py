"""Whose fault an exception is."""

from __future__ import annotations

import gc
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.overrides import TorchFunctionMode

from cgtool.observe import annotations, ops
from cgtool.program import boundary, classify, phases, workload
from cgtool.program.boundary import innermost
from cgtool.program.workload import WorkloadPart
from cgtool.torch_compat import op_key
from cgtool.torch_compat.private import key_set_of, parse_key, redispatcher


def raised(function, *args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


def raised_without_users(function, *args):
    """No frame but the standard library's is outside."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(function, *args).exception()


def part(function, *args):
    return WorkloadPart("f", function, args)


def test_what_the_users_function_raises_is_the_users():
    def f(x):
        raise ValueError

    assert not boundary.own_fault(raised(phases.call, part(f, 1)))


def test_an_op_that_was_handed_over_is_the_users():
    bad = torch.ones(2, 3), torch.ones(2, 3)
    assert not boundary.own_fault(raised(phases.call, part(torch.matmul, *bad)))
    linear = torch.nn.Linear(2, 2)
    assert not boundary.own_fault(raised(phases.call, part(linear, torch.ones(3))))


def test_what_cgtool_does_itself_is_its_own(monkeypatch):
    error = raised_without_users(classify.make_inputs, [None], "cpu")
    assert isinstance(error, AttributeError)
    assert boundary.own_fault(error)
    monkeypatch.setitem(vars(workload), "is_a", None)
    assert boundary.own_fault(raised_without_users(workload.tensors_in, [1]))


def test_arguments_that_no_kernel_in_python_can_get_are_cgtools_fault():
    """Without cgtool, the ops that a kernel calls have kernels in C++ alone."""
    power = redispatcher(torch.ops.aten.pow.Scalar)

    def f(x):
        with op_key.watch(lambda _op, args, kwargs, run, _caller: run(*args, **kwargs)):
            return power(key_set_of(parse_key("CPU")), 2.0, x)

    error = raised(phases.call, part(f, torch.ones(3, device="meta")))
    assert "INTERNAL ASSERT FAILED" in str(error)
    assert boundary.own_fault(error)


def test_what_the_users_line_calls_in_place_of_pytorch_is_the_users():
    assert not boundary.own_fault(raised(classify.make_inputs, [None], "cpu"))


def test_autograd_runs_the_users_code():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("in backward")

    x = torch.ones(1, requires_grad=True)
    y = Fails.apply(x)
    backward = phases.Backward((("y", y),), (("x", x),), (torch.ones(1),))
    assert not boundary.own_fault(raised(phases.grads, backward, False))
    wrong = phases.Backward((("y", x * 2),), (("x", x),), (torch.ones(7),))
    assert not boundary.own_fault(raised(phases.grads, wrong, False))


def test_a_mode_that_hands_an_op_on_is_transparent():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        error = raised(phases.call, part(torch.matmul, torch.ones(2, 3), torch.ones(2, 3)))
    assert not boundary.own_fault(error)


def in_thread(function, *args):
    """As autograd's threads do it: the traceback goes on in the thread that waits."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(function, *args).result()


@pytest.fixture(params=["key", "mode"])
def either_way(request, monkeypatch):
    """Ops are observed on the dispatch key, and by the mode that takes its place."""
    assert op_key.is_supported()
    monkeypatch.setattr(op_key, "is_supported", lambda: request.param == "key")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("run", [lambda f, *a: f(*a), in_thread], ids=["here", "in a thread"])
def test_an_op_that_is_observed_belongs_to_its_caller(run):
    def recorder():
        return ops.OpRecorder({}, annotations.Annotations())

    def f(x):
        return x @ x

    def ours():
        with recorder():
            return torch.ones(2, 3) @ torch.ones(2, 3)

    def theirs(function):
        with recorder():
            return phases.call(part(function, torch.ones(2, 3)))

    assert not boundary.own_fault(raised(run, theirs, f))
    # Called by PyTorch's own Python, with no line of the user's between.
    assert not boundary.own_fault(raised(run, theirs, torch.nn.Linear(2, 2)))
    assert not boundary.own_fault(raised(run, theirs, torch.nn.Sequential(torch.nn.Linear(2, 2))))
    # The same op, called by cgtool itself.
    code = ours.__code__.replace(co_filename=workload.__file__)
    owned = types.FunctionType(code, globals(), "ours", None, ours.__closure__)
    error = raised_without_users(owned)
    assert isinstance(error, RuntimeError)
    assert boundary.own_fault(error)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("run", [lambda f, *a: f(*a), in_thread], ids=["here", "in a thread"])
def test_an_observer_that_fails_is_a_bug(run, monkeypatch):
    monkeypatch.setattr(ops, "op_name", None)

    def f(x):
        with ops.OpRecorder({}, annotations.Annotations()):
            return torch.mm(x, x)

    error = raised(run, phases.call, part(f, torch.ones(2, 2)))
    assert isinstance(error, TypeError)
    assert boundary.own_fault(error)


@pytest.fixture
def no_collection():
    """No finalizer of another test's objects runs here: it would fail where the stack ends."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_whoever_recurses_is_at_fault(monkeypatch, no_collection):
    def f(x):
        return workload.tensors_in([x]) and f(x)

    error = raised(phases.call, part(f, torch.ones(1)))
    assert isinstance(error, RecursionError)
    assert not boundary.own_fault(error)
    monkeypatch.setattr(workload, "is_a", workload.tensors_in)
    error = raised_without_users(workload.tensors_in, [1], [1])
    assert isinstance(error, RecursionError)
    assert boundary.own_fault(error)


def test_running_out_of_memory_is_not_a_bug(monkeypatch):
    def no_memory(*_args):
        raise MemoryError

    monkeypatch.setattr(workload, "is_a", no_memory)
    assert not boundary.own_fault(raised_without_users(workload.tensors_in, [1]))


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        (torch.eye(2).to_sparse(), "a sparse tensor"),
        (torch.eye(2).to_sparse_csr(), "a compressed sparse tensor"),
    ],
)
def test_storages_that_cannot_be_read_are_named(tensor, name):
    error = raised(tensor.untyped_storage)
    assert boundary.unreadable(error).startswith(name)
    assert boundary.unreadable(ValueError("sparse")) is None


def test_the_first_error_of_a_capture_counts_and_no_handled_one():
    def unwinds():
        try:
            raise ValueError("first")
        except ValueError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904

    def handles():
        try:
            raise ValueError("handled")
        except ValueError:
            raise RuntimeError("second")  # noqa: B904

    assert str(innermost(raised(unwinds))) == "first"
    assert str(innermost(raised(handles))) == "second"


def test_what_is_to_be_installed_is_what_was_not_found():
    """Packages that import their parts when they are used hide it behind an error of their own."""
    hidden = ModuleNotFoundError("could not import Model")
    assert boundary.load_error("model.py", hidden).failure.fix is None
    hidden.__cause__ = ModuleNotFoundError("No module named 'part'", name="part")
    fix = boundary.load_error("model.py", hidden).failure.fix
    assert fix is not None and fix.startswith("install part where cgtool runs")

"""What a capture refuses on a GPU is refused here, with the user's line; look-alikes are not.

Each case is a line of the failure catalogue that was run on an H200.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import pickle
import random
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.session import prepare
from cgtool.model.failure import CgtoolError
from cgtool.model.options import CaptureOptions
from cgtool.program.load import load
from cgtool.program.workload import Workload, WorkloadPart
from cgtool.torch_compat import op_key


def quiet(_text: str) -> None:
    """No progress."""


def captured(device, function, *args, kind="callable", **options):
    workload = Workload("test", kind, (WorkloadPart("test", function, args),))
    return prepare(device, workload, CaptureOptions(**options), quiet)


def indices(x):
    return torch.arange(2, device=x.device)


def swallow(function):
    with contextlib.suppress(Exception):
        function()


def in_storage(storage):
    return torch.empty(0, device="cuda").set_(storage)


def copies_assigned_numbers():
    """Recent releases of PyTorch hand the number to a kernel; others copy it from the host, unless
    the part that is assigned has dimensions."""
    names = []

    def observe(op, args, kwargs, run, _caller):
        names.append(op.name())
        return run(*args, **kwargs)

    with op_key.watch(observe):
        torch.ones(1, device="cpu")[0] = 1.0
    return "aten::copy_" in names


COPIES_NUMBERS = copies_assigned_numbers()
ASSIGNED = {
    "one element": lambda x: (y := x + 0, y.__setitem__(0, 1.0))[0],
    "all of a scalar": lambda x: (y := x.sum(), y.__setitem__(..., True))[0],
}
REFUSED = {
    "item": lambda x: x / x.sum().item(),
    "truth": lambda x: x if x.sum() > 0 else -x,
    "print": lambda x: (str(x), x + 1)[1],
    "format": lambda x: (f"{x.sum()}", x + 1)[1],
    "tolist": lambda x: x * x.tolist()[0],
    "numpy": lambda x: (x.detach().numpy(), x + 1)[1],
    "cpu": lambda x: x + x.cpu().to("cuda"),
    "to cpu": lambda x: x + x.to("cpu").to("cuda"),
    "slice bound": lambda x: x[: x.argmax()],
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0)[0],
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "masked assignment": lambda x: (x + 0).__setitem__(x > 0, x.sum()),
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: x.unique_consecutive(),
    "bincount": lambda x: x.long().bincount(),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "one_hot": lambda x: functional.one_hot(x.long()),
    "repeats": lambda x: x.repeat_interleave(x.long()),
    "linspace of tensors": lambda x: torch.linspace(x[0], x[1], 4, device=x.device),
    "index_fill": lambda x: x.index_fill(0, indices(x), x[0]),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(torch.outer(x, x)),
    "pseudo-inverse": lambda x: torch.linalg.pinv(torch.outer(x, x)),
    "rectangular lu": lambda x: torch.linalg.lu_factor_ex(torch.outer(x, x)[:2])[0],
    "solve": lambda x: torch.linalg.solve(torch.outer(x, x) + torch.eye(3, device="cuda"), x),
    # As by default, which code that ran before in this process may have changed.
    "distribution": lambda x: torch.distributions.Normal(x, x, validate_args=True).rsample(),
    "from python": lambda x: x + torch.tensor([1.0, 1.0, 1.0], device="cuda"),
    "from python, its device": lambda x: x + torch.tensor([1.0, 1.0, 1.0], device=x.device),
    "as_tensor": lambda x: x + torch.as_tensor(np.ones(3), device=x.device),
    "new_tensor": lambda x: x + x.new_tensor([1.0, 1.0, 1.0]),
    "pageable": lambda x: x + torch.ones(3).to(x.device),
    "pageable cuda": lambda x: x + torch.ones(3).cuda(non_blocking=True),
    "pageable, without waiting": lambda x: (torch.ones(3).copy_(x, non_blocking=True), x + 1)[1],
    "pinned, waiting": lambda x: (torch.ones(3).pin_memory().copy_(x), x + 1)[1],
    "pinned to cuda, waiting": lambda x: x + torch.ones(3).pin_memory().cuda(),
    "pageable copy": lambda x: torch.empty_like(x).copy_(torch.ones(3)),
    "pageable, of a row": lambda x: of_rows(lambda row: row + torch.zeros(3).to(row.device), x),
    "pageable, of a row, its device": lambda x: of_rows(
        lambda row: row + torch.zeros(3, device="cpu").to(row.device), x
    ),
    "list index": lambda x: x[[0, 1]],
    "host index": lambda x: x[torch.tensor([0, 1])],
    "number by index": lambda x: (x + 0).__setitem__(indices(x), 0.0),
    "list of tensors": lambda x: x + torch.tensor([x[0], x[1], x[2]], device="cuda"),
    "part of the host": lambda x: (x + 0).__setitem__(slice(2), torch.tensor([1.0, 2.0])),
    "one element, host tensor": lambda x: (x + 0).__setitem__(0, torch.tensor(1.0)),
    "coalesce": lambda x: torch.sparse_coo_tensor(indices(x)[None], x[:2], (3,)).coalesce(),
    "swallowed": lambda x: (swallow(x.sum().item), x + 1)[1],
    "logged": lambda x: (logging.getLogger("x").warning("sum %s", x.sum()), x + 1)[1],
    "synchronize": lambda x: (torch.cuda.synchronize(), x + 1)[1],
    "accelerator": lambda x: (torch.accelerator.synchronize(), x + 1)[1],
    "stream synchronize": lambda x: (torch.cuda.current_stream().synchronize(), x + 1)[1],
    "stream query": lambda x: (torch.cuda.current_stream().query(), x + 1)[1],
    "event query": lambda x: (torch.cuda.current_stream().record_event().query(), x + 1)[1],
    "storage to the host": lambda x: (x.untyped_storage().cpu(), x + 1)[1],
    "byte of a storage": lambda x: x + x.untyped_storage()[0],
    "bytes of a storage": lambda x: x + len(x.untyped_storage().tolist()),
    "saved storage": lambda x: (torch.save(x.untyped_storage(), io.BytesIO()), x + 1)[1],
    "pickled": lambda x: (pickle.dumps(x), x + 1)[1],
    "new, from python": lambda x: x + x.new([1.0, 1.0, 1.0]),
    **(ASSIGNED if COPIES_NUMBERS else {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_waiting_for_the_device_is_refused_at_the_users_line(name):
    function = REFUSED[name]
    with SimulatedDevice("test").active() as device:
        x = torch.ones(3, device="cuda")
        with pytest.raises(CgtoolError) as caught:
            captured(device, function, x)
    failure = caught.value.failure
    assert failure.exit_code == 4 and failure.phase == "capture forward"
    assert "900" in (failure.why or "")
    assert failure.fix
    # Libraries outside torch (numpy) may stand further in; the user's own line is named.
    places = [(frame.file, frame.line) for frame in failure.frames]
    assert (__file__, function.__code__.co_firstlineno) in places


def of_rows(function, x, randomness="error"):
    return torch.vmap(function, randomness=randomness)(torch.outer(x, x))


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(3, device=x.device) * torch.full([1], 0.5, device=x.device)


ALLOWED = {
    # An H200 with torch 2.11 captures 14, 5 and 15 nodes.
    "multinomial, one": lambda x: x.multinomial(1) + 0,
    "multinomial, several": lambda x: x.multinomial(2) + 0,
    "multinomial with replacement": lambda x: x.multinomial(9, replacement=True) + 0,
    "part": lambda x: (y := x + 0, y.__setitem__(slice(2), torch.tensor(1.0)))[0],
    "part of one element": lambda x: (y := x + 0, y.__setitem__(slice(1), 1.0))[0],
    "one element of the device": lambda x: (y := x + 0, y.__setitem__(0, x[1]))[0],
    "uncoalesced": lambda x: torch.sparse_coo_tensor(indices(x)[None], x[:2], (3,)).to_dense(),
    "generic stream": lambda x: (torch.Stream(device="cuda"), x + 1)[1],
    "square lu": lambda x: torch.linalg.lu_factor_ex(torch.outer(x, x))[0],
    "quantile": lambda x: x.nanquantile(torch.full((), 0.5, device="cuda")),
    "different shapes": lambda x: x + torch.equal(x, x[:2]),
    "mask of the host": lambda x: x.index_put((torch.tensor([True, False, True]),), x[:2]),
    "masked fill": lambda x: (y := x + 0, y.__setitem__(y > 0, 0.0))[0],
    "host scalar": lambda x: x * torch.tensor(2.0),
    "one_hot": lambda x: functional.one_hot(x.long(), 5),
    "repeats": lambda x: x[:1].repeat_interleave(x[:1].long(), output_size=1),
    "slice": lambda x: x[:2] + x[1:],
    "ellipsis": lambda x: x[..., None, :1] * 1,
    "index tensor": lambda x: x[indices(x)],
    "factories": lambda x: x + torch.full((3,), 2.0, device="cuda") + indices(x)[0],
    "solve_ex": lambda x: torch.linalg.solve_ex(torch.diag(x), x)[0],
    "host work": lambda x: x * float(torch.tensor([1.0, 2.0]).sum()),
    "pinned": lambda x: x + torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "to cpu, without waiting": lambda x: (x.to("cpu", non_blocking=True), x + 1)[1],
    "to cpu, another type": lambda x: (x.to("cpu", torch.float64, non_blocking=True), x + 1)[1],
    "to cpu and back": lambda x: x.to("cpu", non_blocking=True).to("cuda", non_blocking=True) + 1,
    "nothing to copy": lambda x: (x[:0].cpu(), x + 1)[1],
    "an event nobody recorded": lambda x: (torch.cuda.Event().wait(), x + 1)[1],
    "its own device": lambda x: x.to(x.device) + 1,
    "distribution": lambda x: torch.distributions.Normal(x, x, validate_args=False).rsample(),
    "noise of each row": lambda x: of_rows(functional.gumbel_softmax, x, "different"),
    "the same dropout": lambda x: of_rows(lambda row: functional.dropout(row, 0.3), x, "same"),
    "dropout below grad": lambda x: torch.func.grad(lambda x: functional.dropout(x).sum())(x),
    "forward mode": lambda x: torch.func.jvp(torch.func.grad(lambda x: x.exp().sum()), (x,), (x,)),
    "script": lambda x: torch.jit.script(scripted)(x),
    "storage on its device": lambda x: in_storage(x.untyped_storage().cuda()) + x,
    "new storage": lambda x: x + in_storage(torch.UntypedStorage(12, device=x.device).fill_(0)),
    "new": lambda x: x + x.new(3).fill_(1) + x.new(x.shape).zero_(),
    "new, its device": lambda x: x + x.new(3, device=x.device).fill_(1),
    "laplace": lambda x: torch.distributions.Laplace(x, x, validate_args=False).rsample(),
    "exponential": lambda x: torch.distributions.Exponential(x, validate_args=False).rsample(),
    "cauchy": lambda x: torch.distributions.Cauchy(x, x, validate_args=False).rsample(),
    **({} if COPIES_NUMBERS else ASSIGNED),
}  # fmt: skip


def _ones():
    return torch.ones(3, device="cuda", requires_grad=True)


@pytest.mark.parametrize(
    ("function", "reason"),
    {
        "prod": (lambda x: x.prod(), "nonzero"),
        "trace": (lambda x: torch.outer(x, x).trace(), "index_fill"),
        "masked_scatter": (lambda x: x.masked_scatter(x > 0, x), "masked_select"),
    }.values(),
)
def test_what_backward_reads_on_the_host_is_refused(function, reason):
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, function, _ones())
    assert caught.value.failure.phase == "capture backward"
    assert reason in caught.value.failure.message


def test_what_the_default_stream_has_computed_and_is_held_is_refused():
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        x = _ones()
        held = {"loss": x.sum()}
        captured(device, lambda x: x * 3 - held["loss"].detach(), x)
    failure = caught.value.failure
    assert failure.findings[0].code == "accumulate-grad-default-stream"
    assert "the graph behind `held['loss']`" in failure.message


def test_a_backward_whose_forward_ran_before_the_capture_is_refused_for_that():
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        held = {"loss": _ones().sum()}

        def step(x):
            held["loss"].backward(retain_graph=True)
            return x * 2

        captured(device, step, torch.ones(4, device="cuda"))
    failure = caught.value.failure
    assert failure.findings[0].code == "accumulate-grad-default-stream"
    assert "it reaches the forward of `held['loss']`" in failure.message
    assert "compute `held['loss']` in the captured code" in failure.fix


def test_a_node_that_is_kept_belongs_to_the_stream_on_which_it_was_made():
    edge = torch.autograd.graph.get_gradient_edge
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        x = _ones()
        node = edge(x)
        captured(device, lambda x: x * 3, x)
    assert caught.value.failure.findings[0].code == "accumulate-grad-default-stream"
    with SimulatedDevice("test").active() as device:
        x = _ones()
        with torch.cuda.stream(torch.cuda.Stream()):
            node = edge(x)
        captured(device, lambda x: x * 3, x)
    with SimulatedDevice("test").active() as device:
        layer = torch.nn.Linear(3, 3)
        node = edge(layer.weight)
        captured(device, layer.cuda(), _ones())
    del node


def test_what_a_refused_function_calls_is_not_refused_for_other_reasons():
    with SimulatedDevice("test").active() as device:
        device.collecting = True
        captured(device, lambda x: (repr(x.sum()), x + 1)[1], torch.ones(3, device="cuda"))
        refused = [(finding.code, finding.times) for finding in device.findings]
    assert refused == [("sync-print-or-format", 1)]


@pytest.mark.parametrize(
    ("function", "code", "message", "fix"),
    {
        "linspace": (
            lambda x: torch.linspace(x[0], x[1], 4, device=x.device),
            "sync-item",
            "`linspace`, which reads a tensor value on the host,",
            "start + (end - start) * torch.linspace(0, 1, steps, device=...)",
        ),
        "logspace": (
            lambda x: torch.logspace(x[0], 1.0, 4, device=x.device),
            "sync-item",
            "`logspace`, which reads",
            "base ** (start + (end - start)",
        ),
        "arange": (
            lambda x: torch.arange(x[0], 4, device=x.device),
            "sync-slice-with-tensor-bounds",
            "a tensor as a bound or size,",
            "",
        ),
        "item of a list": (
            lambda x: [x, x + 1][x[0].long()],
            "sync-slice-with-tensor-bounds",
            "a tensor as a bound, size or index, which is read on the host,",
            "stack what the list holds",
        ),
        "median": (
            lambda x: statistics.median([x[0], x[1], x[2]]),
            "sync-truth-value",
            "`median`, which takes the truth value of a tensor on the host,",
            "`torch.stack` and `median`",
        ),
        "largest": (
            lambda x: max(x[0], x[1]),
            "sync-truth-value",
            "`max`, which takes the truth value",
            "`torch.maximum`",
        ),
        "all": (
            lambda x: x * all(map(torch.isfinite, x)),
            "sync-truth-value",
            "`all`, which takes the truth value of a tensor on the host,",
            "`torch.stack` and `any` or `all`",
        ),
        "segments": (
            lambda x: torch.segment_reduce(x, "sum", lengths=torch.ones_like(x).long()),
            "hidden-sync-in-stock-module",
            "`segment_reduce`, which reads a tensor value",
            "pass unsafe=True",
        ),
        "zero points": (
            lambda x: torch.fake_quantize_per_channel_affine(x, x, x.int(), 0, -128, 127),
            "hidden-sync-in-stock-module",
            "`fake_quantize_per_channel_affine",
            "`zero_point.float()`",
        ),
        "members": (
            lambda x: torch.isin(x, x.repeat(20)),
            "sync-dynamic-shape-op",
            "`isin`, which calls `unique`",
            "pass assume_unique=True if",
        ),
        "choice": (
            lambda x: random.choices([x, x + 1, x + 2], weights=x)[0],
            "sync-truth-value",
            "`choices`, which takes the truth value",
            "`torch.multinomial`",
        ),
        "mean of numbers": (
            lambda x: x * statistics.fmean([x[0], x[1]]),
            "sync-item",
            "`fmean`, which reads a tensor value on the host,",
            "keep the value on the device",
        ),
        "number of an op": (
            lambda x: torch.add(x, x, alpha=x[0]),
            "sync-item",
            "`add`, which reads a tensor value on the host,",
            "keep the value on the device",
        ),
        "number of its own": (
            lambda x: functional.one_hot(x.long(), num_classes=-1),
            "hidden-sync-in-stock-module",
            "`one_hot` without the number of classes, which reads the largest class on the host,",
            "pass num_classes",
        ),
        "number of classes in a tensor": (
            lambda x: functional.one_hot(x.long(), x.sum().long()),
            "sync-item",
            "`one_hot`, which reads a tensor value on the host,",
            "as a Python number",
        ),
        "covariance": (
            lambda x: torch.cov(x[None]),
            "hidden-sync-in-stock-module",
            "`cov`, which calls `torch.equal`,",
            "`x @ x.T / (x.shape[1] - 1)`",
        ),
        "math": (
            lambda x: x * math.sqrt(x[0]),
            "sync-item",
            "`sqrt`, which reads a tensor value on the host,",
            "use `torch.sqrt`, which stays on the device",
        ),
        "item": (
            lambda x: x * x[0].item(),
            "sync-item",
            "reading a tensor value on the host (.item(), int(), float())",
            "keep the value on the device",
        ),
        "condition": (
            lambda x: x if x[0] > 0 else x + 1,
            "sync-truth-value",
            "the truth value of a tensor (if, while, assert, bool())",
            "`torch.where`",
        ),
        "condition on a call": (
            lambda x: x if x.any() else x + 1,
            "sync-truth-value",
            "the truth value of a tensor (if, while, assert, bool())",
            "`torch.where`",
        ),
    }.values(),
)
def test_the_function_that_reads_is_named_with_what_to_use_instead(function, code, message, fix):
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, function, torch.ones(3, device="cuda"))
    failure = caught.value.failure
    assert failure.findings[0].code == code
    assert failure.message.startswith(message)
    assert fix in failure.fix


def test_a_function_in_cpp_that_compares_tensors_is_named():
    def reconstruct(x):
        spectrum = torch.stft(x, 8, window=x[:8], return_complex=True)
        return torch.istft(spectrum, 8, window=x[:8])

    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, reconstruct, torch.hann_window(64, device="cuda"))
    assert caught.value.failure.message.startswith("`istft`, which calls `torch.equal`, is not")


def test_a_function_that_copies_to_the_host_is_named_once():
    def loss(x):
        lengths = torch.full((1,), 4, device="cuda")
        return functional.ctc_loss(x.log_softmax(-1), lengths[None] // 4, lengths, lengths // 4)

    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, loss, torch.ones(4, 1, 3, device="cuda"))
    message = caught.value.failure.message
    assert message.startswith("`ctc_loss`, which copies its lengths to the host, is not")


@pytest.mark.parametrize("function", [torch.max, torch.median, torch.nanmedian])
def test_what_only_the_cpu_reads_in_backward_is_captured(function):
    with SimulatedDevice("test").active() as device:
        assert captured(device, function, _ones()).graphs[1].graph.nodes


@torch.library.custom_op("refusals::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()  # in a custom op


@torch.library.custom_op("refusals::corrected", mutates_args=())
def corrected(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([0.1, 0.2, 0.3])
    return x * table.to(x.device)  # in a custom op


@pytest.mark.parametrize("op", [scaled, corrected])
def test_a_custom_op_is_looked_into(op):
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, lambda x: op(x), torch.ones(3, device="cuda"))
    assert caught.value.failure.phase == "capture forward"
    frame = caught.value.failure.frames[0]
    assert "in a custom op" in Path(__file__).read_text().splitlines()[frame.line - 1]


@torch.library.custom_op("refusals::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(3, device=x.device)
    assert zeros.is_cuda
    return x + zeros + torch.arange(3, device=x.device)


def test_a_custom_op_makes_tensors_on_the_device():
    with SimulatedDevice("test").active() as device:
        session = captured(device, lambda x: shifted(shifted(x)) * 2, torch.ones(3, device="cuda"))
    names = [node.call.name for node in session.graphs[0].graph.nodes]
    assert names == ["refusals::shifted", "refusals::shifted", "aten::mul.Tensor"]


def in_a_thread(function, x):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(x)))
    thread.start()
    thread.join()
    return results[0]


def in_a_pool(function, x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, x).result()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("run", [in_a_thread, in_a_pool])
def test_a_new_thread_runs_on_the_default_stream(run):
    failure = failure_of(lambda x: run(torch.relu, x) + 1, ones)
    assert failure.findings[0].code == "kernel-on-stream-zero"
    assert failure.frames[0].file == __file__


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda x: x[0].item(), "sync-item"),
        (lambda _: torch.cuda.current_stream().synchronize(), "explicit-synchronize"),
        (lambda _: torch.ones(4).pin_memory(), "pin-memory-during-capture"),
    ],
)
def test_the_mode_of_the_capture_permits_calls_of_other_threads(call, code):
    def run(x):
        swallow(lambda: in_a_thread(call, x))
        return x + 1

    failure = failure_of(run, ones)
    assert failure.findings[0].code == code
    assert failure.frames[0].file == __file__
    with SimulatedDevice("test").active() as device:
        captured(device, run, ones(), capture_error_mode="thread_local")


def test_a_thread_can_enter_the_captured_stream():
    def on(stream):
        def function(x):
            with torch.cuda.stream(stream):
                return x * 2

        return function

    with SimulatedDevice("test").active() as device:
        session = captured(
            device, lambda x: in_a_thread(on(torch.cuda.current_stream()), x), ones()
        )
    assert len(session.graphs[0].graph.nodes) == 1


def test_a_module_on_meta_can_run_with_the_parameters_of_others(tmp_path):
    (tmp_path / "ensemble.py").write_text(ENSEMBLE)
    with SimulatedDevice("test").active() as device:
        workload = load(f"{tmp_path}/ensemble.py:build", device="cuda")
        assert prepare(device, workload, CaptureOptions(), quiet).graphs


ENSEMBLE = """
import copy
import torch
from torch.func import functional_call, stack_module_state, vmap

def build(device):
    models = [torch.nn.Linear(4, 4).to(device) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    parameters = {name: value.detach() for name, value in parameters.items()}
    base = copy.deepcopy(models[0]).to("meta")

    def model(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    def run(x):
        return vmap(model, in_dims=(0, 0, None))(parameters, buffers, x)

    return run, (torch.randn(2, 4, device=device),)
"""


def test_a_lazy_module_is_captured(tmp_path):
    (tmp_path / "lazy.py").write_text(LAZY)
    with SimulatedDevice("test").active() as device:
        workload = load(f"{tmp_path}/lazy.py:build", device="cuda")
        assert prepare(device, workload, CaptureOptions(), quiet).graphs


LAZY = """
import torch

def build(device):
    return torch.nn.LazyLinear(4).to(device), (torch.randn(2, 3, device=device),)
"""


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_gpu_captures_is_captured(name):
    with SimulatedDevice("test").active() as device:
        x = torch.ones(3, device="cuda")
        session = captured(device, ALLOWED[name], x)
        session.graphs[0].graph.replay()
    assert session.graphs[0].graph.nodes


def test_a_sync_in_backward_names_the_users_line():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * gradient.sum().item()

    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, Bad.apply, torch.ones(3, device="cuda", requires_grad=True))
    failure = caught.value.failure
    line = Bad.backward.__code__.co_firstlineno + 2
    assert failure.phase == "capture backward"
    assert (failure.frames[0].line, "backward" in failure.frames[0].function) == (line, True)


def test_the_users_own_backward_may_name_the_gpu():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert gradient.is_cuda
            return gradient * torch.full((3,), 2.0, device="cuda")

    with SimulatedDevice("test").active() as device:
        x = torch.ones(3, device="cuda", requires_grad=True)
        session = captured(device, Doubled.apply, x)
    assert session.gradients[0][0].tolist() == [2, 2, 2]


def failure_of(function, *args, **options):
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        captured(device, function, *[make() for make in args], **options)
    return caught.value.failure


def ones():
    return torch.ones(3, device="cuda")


def test_an_unjoined_stream_is_named_with_its_last_line():
    def function(x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x * 2
        return x + 1

    failure = failure_of(function, ones)
    assert "904" in failure.why
    assert failure.frames[0].line == function.__code__.co_firstlineno + 4


def test_waiting_for_work_from_before_the_capture_is_refused():
    with SimulatedDevice("test").active() as device:
        side = torch.cuda.Stream()
        ready = side.record_event()

        def by_stream(x):
            torch.cuda.current_stream().wait_stream(side)
            return x + 1

        def by_event(x):
            torch.cuda.current_stream().wait_event(ready)
            return x + 1

        for function in (by_stream, by_event):
            with pytest.raises(CgtoolError) as caught:
                captured(device, function, ones())
            assert "905" in caught.value.failure.why
            line = caught.value.failure.frames[0].line
            assert line == function.__code__.co_firstlineno + 1


def test_work_on_a_stream_that_was_not_forked_is_refused():
    def function(x):
        with torch.cuda.stream(torch.cuda.Stream()):
            y = x * 2
        return y + 1

    failure = failure_of(function, ones)
    assert failure.findings[0].code == "side-stream-not-forked"
    assert failure.frames[0].line == function.__code__.co_firstlineno + 2


def test_the_default_stream_cannot_join_a_capture():
    def function(x):
        torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
        return x + 1

    assert "906" in failure_of(function, ones).why


def test_random_state_belongs_to_the_graph():
    def makes_one(x):
        return x.normal_(generator=torch.Generator(device="cuda"))

    def seeds(x):
        torch.cuda.manual_seed((torch.cuda.initial_seed() + 1) % 1000)
        return x + 1

    assert "torch.Generator" in failure_of(makes_one, ones).message
    assert "manual_seed" in failure_of(seeds, ones).message


def test_an_optimizer_that_is_not_capturable_is_refused():
    with SimulatedDevice("test").active() as device:
        weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.AdamW([weight])

        def step():
            weight.grad = torch.ones_like(weight)
            optimizer.step()

        with pytest.raises(CgtoolError) as caught:
            captured(device, step, kind="step")
    assert "capturable is False" in caught.value.failure.message


def test_a_graph_inside_the_workload_is_refused():
    def function(x):
        torch.cuda.CUDAGraph()
        return x + 1

    assert "no counterpart" in failure_of(function, ones).message


def test_work_on_host_tensors_alone_is_an_empty_graph():
    failure = failure_of(lambda x: x * 2, lambda: torch.ones(3), kind="step")
    assert "nothing was captured" in failure.message
    assert "CPU" in failure.why


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.ones(4),
        lambda x: x @ torch.ones(4, 4),
        nn.Linear(4, 4),
        nn.Conv1d(2, 2, 1),
        nn.LayerNorm(4),
        lambda x: torch.nn.functional.embedding(x.long(), torch.ones(8, 2)),
        lambda x: torch.cat([x, torch.ones(2, 4)]),
    ],
)
def test_tensors_on_two_devices_fail_as_in_eager(function):
    with (
        SimulatedDevice("test").active() as device,
        pytest.raises(CgtoolError, match="found at least two devices, cuda:0 and cpu"),
    ):
        captured(device, function, torch.ones(2, 4, device="cuda"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.tensor(2.0),
        lambda x: x.masked_fill(x > 0, torch.tensor(2.0)),
        lambda x: torch.linalg.solve_ex(x @ x.t(), x)[0],
    ],
)
def test_scalars_of_the_host_and_what_kernels_make_are_fine(function):
    with SimulatedDevice("test").active() as device:
        captured(device, function, torch.ones(2, 4, device="cuda"))


@torch.library.custom_op("tests::center", mutates_args=())
def center(x: torch.Tensor) -> torch.Tensor:
    return x - x.sum() / (torch.ones((), device=x.device) * x.numel())


def test_a_custom_op_names_the_device_of_its_tensor():
    with SimulatedDevice("test").active() as device:
        captured(device, center, torch.ones(4, device="cuda"))


def test_an_observer_names_the_device_of_a_tensor():
    made = []

    def observe(op, args, kwargs, run, _caller):
        with op_key.unobserved():
            made.append(torch.ones(2, device=args[0].device))
        return run(*args, **kwargs)

    with SimulatedDevice("test").active():
        x = torch.ones(2, device="cuda")
        with op_key.watch(observe):
            x.sin()
        assert [tensor.device.type for tensor in made] == ["cuda"]


def test_a_refusal_in_a_thread_prints_no_traceback(monkeypatch):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    def forward(x):
        helper = threading.Thread(target=torch.cuda.synchronize)
        helper.start()
        helper.join()
        return x * 2

    with (
        SimulatedDevice("test").active() as device,
        pytest.raises(CgtoolError, match="synchronize"),
    ):
        captured(device, forward, torch.ones(2, device="cuda"))
    assert printed == []

"""What the sentences of a failed capture mean. An H200 printed these texts (torch 2.11)."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgtool.detectors.capture_errors import explain
from cgtool.findings import page

REFUSED = "CUDA error: operation not permitted when stream is capturing\nSearch for `cudaError..."
COPY = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def raised(text, kind=RuntimeError):
    """As PyTorch raises it: the innermost frame is of PyTorch's, the line is the user's."""
    return kind(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CUDA error: dependency created on uncaptured work in another stream",
         "wait-on-precapture-work"),
        ("CUDA error: capturing stream has unjoined work", "unjoined-side-stream"),
        ("CUDA error: operation would result in a merge of separate capture sequences",
         "merge-of-captures"),
        ("CUDA error: operation would make the legacy stream depend on a capturing blocking stream",
         "default-stream-dependency"),
        ("Capture must end on the same stream it began on.", "capture-ended-elsewhere"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
         "lazy-library-init"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
         "lazy-library-init"),
        ("Capturing cudnnFind failed", "cudnn-benchmark-in-capture"),
        ("Cannot construct a new CUDAGeneratorImpl during CUDA graph capture.",
         "rng-new-generator"),
        ("Attempt to increase offset for a CUDA generator not in capture mode.",
         "rng-unregistered-generator"),
        ("Attempting CUDA graph capture of step() for an instance of AdamW but param_groups' "
         "capturable is False.", "optimizer-not-capturable"),
        ("Offset increment outside graph capture encountered unexpectedly.",
         "failed-capture-poisons-process"),
        ("CUDA error: operation failed due to a previous error during capture",
         "finalizer-in-capture"),
    ],
)  # fmt: skip
def test_a_sentence_has_its_code(text, code, monkeypatch):
    # Threads of other tests are none of this one's.
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    finding = explain(raised(text), "capture forward")
    assert finding.code == code
    assert page(code) is not None
    assert text.splitlines()[0] in finding.evidence[0]


def test_cudnn_benchmarks_only_if_the_program_says_so(monkeypatch):
    text = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert explain(raised(text), "capture forward").code == "cudnn-benchmark-in-capture"


def test_the_legacy_stream_in_backward_is_a_stale_autograd_node():
    text = (
        "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
    )
    assert explain(raised(text), "capture backward").code == "accumulate-grad-default-stream"


@pytest.mark.parametrize("text", [REFUSED, COPY])
def test_every_refusal_has_a_code(text):
    assert page(explain(raised(text), "capture forward").code) is not None


def test_a_library_error_in_eager_mode_is_not_late_initialization():
    text = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    assert explain(raised(text), "warm-up") is None


@pytest.mark.parametrize("iterations", [3, 11])
@pytest.mark.parametrize("module", [torch.nn.parallel.distributed, torch.autograd.graph])
def test_a_ddp_that_is_captured_too_early(module, iterations):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        x = torch.ones(2, 4)
        for _ in range(iterations):
            model(x).sum().backward()
        model(x)
        with pytest.raises(RuntimeError) as refused:  # as its forward or its backward raises it
            exec(compile("raise RuntimeError(REFUSED)", module.__file__, "exec"))
        finding = explain(refused.value, "capture")
        is_cold = finding.code == "ddp-default-stream-or-short-warmup"
        assert is_cold == (iterations < 11)
        del model
    finally:
        dist.destroy_process_group()


def test_a_module_that_is_refused_inside_a_cold_ddp():
    class Reads(torch.nn.Linear):
        def forward(self, _x):
            exec(compile("raise RuntimeError(REFUSED)", torch.__file__, "exec"))  # as `x.item()`

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError) as refused:
            DistributedDataParallel(Reads(4, 4))(torch.ones(2, 4))
        assert explain(refused.value, "capture").code != "ddp-default-stream-or-short-warmup"
    finally:
        dist.destroy_process_group()


def test_what_the_user_says_is_not_taken_for_a_sentence_of_pytorch():
    try:
        raise ValueError("batch must contain only Tensors")
    except ValueError as error:
        assert explain(error, "capture forward") is None


def test_memory_that_runs_out_in_a_capture():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 27.67 GiB.")
    assert explain(error, "capture forward").code == "oom-during-capture"
    assert explain(error, "warm-up") is None


def test_an_exception_whose_text_raises():
    class Odd(RuntimeError):
        def __str__(self):
            raise ValueError

    assert explain(Odd(), "capture forward") is None


_OF_PYTORCH = {"error": getattr(torch, "AcceleratorError", RuntimeError), "text": REFUSED}
exec(compile("def refuse(*_): raise error(text)", torch.__file__, "exec"), _OF_PYTORCH)
PINNED = SimpleNamespace(**dict.fromkeys(("copy_", "to", "cuda"), _OF_PYTORCH["refuse"]))


@pytest.mark.parametrize(
    ("copy", "code"),
    [
        (lambda x: PINNED.copy_(x), "sync-d2h-copy"),
        (lambda x: PINNED.to(x.device), "h2d-pageable-copy"),
        (lambda x: PINNED.cuda() + x, "h2d-pageable-copy"),
    ],
)
def test_a_wait_for_a_copy_with_pinned_memory_is_one(copy, code):
    with pytest.raises(Exception, match="not permitted") as caught:
        copy(torch.ones(1))
    assert explain(caught.value, "capture forward").code == code


def test_a_capture_on_the_default_stream_is_not_a_wrong_order():
    finding = explain(raised("CUDA graphs must be captured on a non-default stream."), "script")
    assert finding.code == "api-order-misuse"
    assert "default stream" in finding.reason
    assert "torch.cuda.stream" in finding.fix


NO_REPLAY = (
    "Cannot prepare for replay during capturing stage. If you need this call to be captured, "
    "please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
)


@pytest.mark.parametrize("text", [NO_REPLAY, REFUSED])
def test_a_replay_in_a_capture_is_one(text):
    graph = {"error": _OF_PYTORCH["error"], "text": text}
    lines = Path(torch.cuda.graphs.__file__).read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if line.strip() == "super().replay()")
    source = "\n" * number + "raise error(text)"
    with pytest.raises(RuntimeError) as caught:
        exec(compile(source, torch.cuda.graphs.__file__, "exec"), graph)
    finding = explain(caught.value, "capture forward")
    assert finding.code == "api-order-misuse"
    assert "replayed while a stream is capturing" in finding.reason


def test_compiled_code_that_replays_its_own_graph_in_a_capture():
    source = "def run(): raise error(text)"
    file = str(Path(torch.__file__).parent / "_inductor" / "cudagraph_trees.py")
    trees = {"error": RuntimeError, "text": NO_REPLAY}
    exec(compile(source, file, "exec"), trees)
    with pytest.raises(RuntimeError) as caught:
        trees["run"]()
    finding = explain(caught.value, "capture forward")
    assert finding.code == "api-order-misuse"
    assert "torch.compile" in finding.reason
    assert "max-autotune-no-cudagraphs" in finding.fix


def test_a_read_in_a_line_that_replays_is_no_replay():
    def replay(value):
        return value

    with pytest.raises(Exception, match="not permitted") as caught:
        replay(PINNED.to(1).item())
    assert explain(caught.value, "capture forward").code != "api-order-misuse"


def test_a_capture_inside_another_is_refused_where_it_synchronizes(monkeypatch):
    def refuse():
        raise raised(REFUSED)

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    inner = torch.cuda.graph.__new__(torch.cuda.graph)
    with pytest.raises(RuntimeError) as caught:
        inner.__enter__()
    # `synchronize` is a function of PyTorch's.
    entry = caught.value.__traceback__
    while entry.tb_next.tb_next is not None:
        entry = entry.tb_next
    entry.tb_next = None
    assert explain(caught.value, "script").code == "api-order-misuse"
    other = threading.Thread(name="other")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), other])
    assert explain(caught.value, "script").code == "sync-item", "the other one may capture"

"""What an exception of a capture means: the finding behind it.

PyTorch reports most failed captures with an error of CUDA that names a rule, not the cause. The
cause shows in the text of the error, in the frames that were running, and in what else the process
was doing. ``RULES`` were read in the sources of PyTorch 2.8 to 2.13 and seen on an H200.
"""

from __future__ import annotations

import os
import re
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from cgtool.detectors.op_rules import library_code
from cgtool.findings.registry import code
from cgtool.model.finding import Code, Finding
from cgtool.observe.call_sites import checkpointed_at
from cgtool.observe.frames import package_part
from cgtool.torch_compat.private import pins_memory

ACTIVATION_CHECKPOINTING = code("activation-checkpointing")
CUDNN_BENCHMARK_IN_CAPTURE = code("cudnn-benchmark-in-capture")
DATALOADER_PIN_THREAD = code("dataloader-pin-thread")
FINALIZER_IN_CAPTURE = code("finalizer-in-capture")
FIRST_COMPILE_IN_CAPTURE = code("first-compile-in-capture")
H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
LAZY_LIBRARY_INIT = code("lazy-library-init")
MULTI_DEVICE_CAPTURE = code("multi-device-capture")
OOM_DURING_CAPTURE = code("oom-during-capture")
OTHER_THREAD_CUDA_CALL = code("other-thread-cuda-call")
RNG_NEW_GENERATOR = code("rng-new-generator")
RNG_UNREGISTERED_GENERATOR = code("rng-unregistered-generator")
RNG_STATE_ACCESS = code("rng-state-access")
SYNC_ITEM = code("sync-item")
TRITON_AUTOTUNE_IN_CAPTURE = code("triton-autotune-in-capture")


@dataclass(frozen=True)
class CaptureError:
    """An exception, reduced to what the rules read."""

    text: str
    files: tuple[str, ...]
    """Files of its traceback, innermost first: ``/torch/optim/sgd.py`` for PyTorch's own, the bare
    name for the user's."""
    lines: tuple[str, ...]
    """The source line of each of ``files``."""
    backward: bool
    type: type[BaseException]

    def ran(self, part: str) -> bool:
        """Whether a file of the traceback has ``part`` in its name."""
        return any(part in name for name in self.files)


@dataclass(frozen=True)
class Rule:
    """One error of PyTorch or CUDA and the finding that it means."""

    code: Code
    pattern: str
    """A regular expression that the text matches somewhere, in any case."""
    reason: str
    fix: str | None = None
    when: Callable[[CaptureError], bool] = lambda _error: True


def explain(exception: BaseException, phase: str) -> Finding | None:
    """The finding behind an exception, without frames, which the caller knows.

    None when the exception is not about a capture. ``phase``: ``capture forward``, ``warm-up``, ...
    """
    error = _read(exception, phase)
    first_line = error.text.strip().splitlines()[0] if error.text.strip() else ""
    evidence = (f"{error.type.__name__}: {first_line}",)
    if isinstance(exception, torch.OutOfMemoryError) and "capture" in phase:
        return Finding(
            OOM_DURING_CAPTURE,
            "the GPU ran out of memory during the capture, when PyTorch cannot free cached blocks",
            phase=phase,
            evidence=evidence,
        )
    if not _is_pytorchs(error):
        return None
    for rule in RULES:
        if phase in _EAGER and rule.code in _ONLY_IN_CAPTURE:
            continue
        if re.search(rule.pattern, error.text, re.IGNORECASE) and rule.when(error):
            return Finding(rule.code, rule.reason, phase=phase, fix=rule.fix, evidence=evidence)
    if COPY in error.text:
        return Finding(
            _code_of_line(COPIES, error) or H2D_PAGEABLE_COPY,
            "a copy between the device and pageable host memory is not permitted when a stream is "
            "capturing",
            phase=phase,
            evidence=evidence,
        )
    if REFUSED in error.text:
        return Finding(
            _code_of_line(SYNCS, error) or SYNC_ITEM,
            "this line is not permitted when a stream is capturing "
            "(cudaErrorStreamCaptureUnsupported, 900): most often the host waits for the device, "
            "or copies from pageable memory",
            phase=phase,
            evidence=evidence,
        )
    if "previous error during capture" in error.text:
        return _invalidated(phase, evidence)
    return None


def at_checkpoint(finding: Finding) -> Finding:
    """A finding about checkpointing at the line that called ``checkpoint``; any other as it is."""
    frames = checkpointed_at()
    if finding.code != ACTIVATION_CHECKPOINTING or not frames:
        return finding
    return msgspec.structs.replace(finding, frames=frames)


def _read(exception: BaseException, phase: str) -> CaptureError:
    try:
        text = str(exception)
    except Exception:  # a __str__ of the user's
        text = ""
    summary = traceback.extract_tb(exception.__traceback__)
    return CaptureError(
        text,
        tuple(
            package_part(frame.filename) or Path(frame.filename).name for frame in reversed(summary)
        ),
        tuple(frame.line or "" for frame in reversed(summary)),
        "backward" in phase,
        type(exception),
    )


_DRIVER_ERRORS = (
    torch.OutOfMemoryError,
    getattr(torch, "AcceleratorError", torch.OutOfMemoryError),
)
"""PyTorch before 2.8 raises RuntimeError for errors of the driver too."""
_EAGER = ("warm-up", "load")
_ONLY_IN_CAPTURE = frozenset(
    (
        LAZY_LIBRARY_INIT,
        CUDNN_BENCHMARK_IN_CAPTURE,
        FIRST_COMPILE_IN_CAPTURE,
        TRITON_AUTOTUNE_IN_CAPTURE,
        INPUT_FREED_BEFORE_REPLAY,
        MULTI_DEVICE_CAPTURE,
    )
)
"""Codes whose error means something else while nothing is captured."""


def _is_pytorchs(error: CaptureError) -> bool:
    """False for an exception that a file of the user's raises, with a type that errors of the
    driver do not have: its text is the user's."""
    if issubclass(error.type, _DRIVER_ERRORS):
        return True
    innermost = error.lines[0].strip() if error.lines else ""
    is_users = bool(error.files) and not error.files[0].startswith("/")
    return not (is_users and innermost.startswith("raise "))


def _code_of_line(
    table: tuple[tuple[Code, re.Pattern[str]], ...], error: CaptureError
) -> Code | None:
    """The code of the library that ran, else the first in ``table`` for the user's line."""
    by_library = library_code(error.files)
    if by_library is not None:
        return by_library
    users = (
        line
        for line, name in zip(error.lines, error.files, strict=True)
        if not name.startswith("/")
    )
    line = next(users, "")
    return next((line_code for line_code, pattern in table if pattern.search(line)), None)


def _invalidated(phase: str, evidence: tuple[str, ...]) -> Finding:
    """901 with no error before it: something outside the captured code ended the capture."""
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and thread is not threading.current_thread()
    ]
    if any(map(pins_memory, threading.enumerate())):
        return Finding(
            DATALOADER_PIN_THREAD,
            "the capture was ended by code outside it (901): a `DataLoader` with pin_memory=True "
            "has a thread that calls CUDA",
            phase=phase,
            fix='use capture_error_mode="thread_local", or create the loader after the capture',
            evidence=evidence,
        )
    if others:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:6])
        return Finding(
            OTHER_THREAD_CUDA_CALL,
            "the capture was ended by code outside it (901): another thread called CUDA; running "
            f"threads: {names}",
            phase=phase,
            fix='stop the thread during the capture, or use capture_error_mode="thread_local"',
            evidence=evidence,
        )
    return Finding(
        FINALIZER_IN_CAPTURE,
        "the capture was ended by a call whose own error was ignored (901): most often the "
        "finalizer of an object that was garbage collected",
        phase=phase,
        fix="keep graphs, events and kernels alive until the capture ends, and call gc.collect() "
        "before it",
        evidence=evidence,
    )


def _in_backward(error: CaptureError) -> bool:
    return error.backward or error.ran("/torch/autograd/graph.py")


REFUSED = "operation not permitted when stream is capturing"
COPY = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"

_LIBRARY_ERROR = (
    "(CUBLAS|CUSOLVER|CUSPARSE|CUDNN)_STATUS_(NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)"
    "|cusolver error|cuFFT error"
)

# In order: the first rule that matches is the answer.
RULES = (
    Rule(
        code("optimizer-not-capturable"),
        r"Attempting CUDA graph capture of step\(\)|If capturable=True, params and state_steps",
        "the optimizer keeps its step count on the host, where a replay does not advance it",
        "construct the optimizer with capturable=True",
    ),
    Rule(
        code("optimizer-adafactor-keyerror"),
        r"^'?capturable'?$",
        "this optimizer checks for a capture but has no `capturable` option",
        "call its step() outside the graph, or use an optimizer with capturable=True",
        lambda error: issubclass(error.type, KeyError) and error.ran("/torch/optim/"),
    ),
    Rule(
        ACTIVATION_CHECKPOINTING,
        r"use_reentrant=True, torch.utils.checkpoint is incompatible|"
        r"When use_reentrant=True|Checkpointing is not compatible with \.grad\(\)",
        "reentrant checkpointing works only under .backward(), and gradients are captured with "
        "torch.autograd.grad",
        "use checkpoint(..., use_reentrant=False)",
    ),
    Rule(
        ACTIVATION_CHECKPOINTING,
        r"CUDAGeneratorImpl::|graphsafe|RNG state",
        "checkpointing saves and restores the random state, which is not permitted during capture",
        "use checkpoint(..., preserve_rng_state=False) if nothing random runs inside",
        lambda error: error.ran("/torch/utils/checkpoint.py"),
    ),
    Rule(
        RNG_NEW_GENERATOR,
        r"Cannot construct a new CUDAGeneratorImpl",
        "a CUDA generator is created when a stream is capturing",
        "create it once, outside the captured code",
    ),
    Rule(
        RNG_UNREGISTERED_GENERATOR,
        r"Attempt to increase offset for a CUDA generator not in capture mode",
        "random numbers come from a generator that is not registered with the graph",
        "call CUDAGraph.register_generator_state(generator) before the capture, or use the default "
        "generator",
    ),
    Rule(
        code("failed-capture-poisons-process"),
        r"Offset increment outside graph capture encountered unexpectedly",
        "an earlier capture failed in this process and left the random generator in capture mode",
        "run each attempt at a capture in a new process",
    ),
    Rule(
        RNG_STATE_ACCESS,
        r"CUDAGeneratorImpl::|set_state_index method during capturing",
        "the random state is read or set when a stream is capturing",
        "do this outside the captured code",
    ),
    Rule(
        code("conditional-node-limits"),
        r"within data-dependent conditional nodes|conditional nodes are not supported|"
        r"conditional control flow in a cuda graph|no rule registered for HigherOrderOperator",
        "a branch of a conditional node does not support this op",
        "move it out of the branch, or capture one graph for each branch",
    ),
    Rule(
        code("conditional-node-limits"),
        REFUSED,
        "torch.cond reads its predicate on the host in this version of PyTorch (900)",
        "use PyTorch 2.12 or newer, or compute both branches and select with torch.where",
        lambda error: error.ran("/torch/_higher_order_ops/"),
    ),
    Rule(
        code("caching-allocator-disabled"),
        REFUSED,
        "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every allocation calls cudaMalloc, which is not "
        "permitted during capture (900)",
        "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        lambda _error: bool(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")),
    ),
    Rule(
        code("module-hooks-rejected"),
        r"Modules must not have hooks registered at the time they are passed",
        "`make_graphed_callables` does not accept a module with hooks",
        "register them after make_graphed_callables",
    ),
    Rule(
        code("trainable-buffer"),
        r"only parameters may be trainable",
        "a buffer of the module requires grad",
        "make it a parameter, or call requires_grad_(False) on it",
    ),
    Rule(
        code("non-tensor-sample-arg"),
        r"must contain only Tensors|Other types are not allowed",
        "`make_graphed_callables` accepts only tensors as sample arguments",
        "bind other values with functools.partial, or in a wrapper module",
    ),
    Rule(
        code("autocast-weight-cache"),
        r"does not support the autocast caching",
        "the graph would read a weight from the autocast cache in every replay",
        "use torch.autocast(..., cache_enabled=False)",
    ),
    Rule(
        code("unused-input"),
        r"appears? to not have been used in the graph",
        "an input or parameter that requires grad does not affect the outputs",
        "pass allow_unused_input=True, or freeze what is not used",
    ),
    Rule(
        code("double-backward"),
        r"trying to differentiate twice a function that was marked",
        "a callable returned by `make_graphed_callables` cannot be differentiated twice",
        "capture the whole step, including the double backward, with torch.cuda.graph",
    ),
    Rule(
        code("arg-order-or-kwargs-changed"),
        r"functionalized\(\) got an unexpected keyword argument|"
        r"new_fwd\(\) got an unexpected keyword argument",
        "a graphed callable takes positional arguments only",
        "pass them by position, in the order of the sample arguments",
    ),
    Rule(
        code("no-differentiable-params"),
        r"element 0 of tensors does not require grad",
        "no output requires grad, so there is no backward to capture",
        "capture only the forward",
    ),
    Rule(
        code("capture-ended-elsewhere"),
        r"Capture must end on the same stream it began on|not ended in the same stream|"
        r"terminate a thread-local capture sequence from another thread",
        "the capture ended on a different stream or thread than it began on (903, 908)",
        "use the context manager torch.cuda.graph",
    ),
    Rule(
        code("api-order-misuse"),
        r"Called CUDAGraph::|must be captured on a non-default stream|already owns a captured "
        r"graph|until capture_end\(\) has been called|keep_graph=true|keep_graph=True|"
        r"must have been called before calling|CUDA Graphs debug not enabled",
        "methods of `CUDAGraph` were called in the wrong order",
        "capture, then instantiate (with keep_graph=True), then replay; one capture per graph",
    ),
    Rule(
        FIRST_COMPILE_IN_CAPTURE,
        rf"{REFUSED}|{COPY}|CUDAGeneratorImpl::|previous error during capture",
        "`torch.compile` compiles during the capture, because the function did not run before",
        "call the compiled function once with the same shapes before the capture",
        lambda error: error.ran("/torch/_dynamo/") or error.ran("/torch/_inductor/"),
    ),
    Rule(
        TRITON_AUTOTUNE_IN_CAPTURE,
        rf"{REFUSED}|Triton Error|previous error during capture",
        "Triton compiles or autotunes a kernel during the capture, because it did not run before",
        "launch the kernel once with the same shapes and dtypes before the capture",
        lambda error: error.ran("/triton/"),
    ),
    Rule(
        CUDNN_BENCHMARK_IN_CAPTURE,
        r"Capturing cudnnFind|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN benchmarks its algorithms for a shape that first occurs in the capture",
        "warm up with the same shapes, dtypes and memory format, or set "
        "torch.backends.cudnn.benchmark = False",
    ),
    Rule(
        LAZY_LIBRARY_INIT,
        _LIBRARY_ERROR,
        "a CUDA library creates its handle or workspace during the capture, because it was not "
        "used on this stream before",
        "run at least one iteration on the capture stream before the capture",
    ),
    Rule(
        MULTI_DEVICE_CAPTURE,
        r"invalid device ordinal",
        "there is no GPU with this index",
        "use one device per graph, under torch.cuda.device(...)",
    ),
    Rule(
        code("accumulate-grad-default-stream"),
        r"stale reference to the default stream",
        "an autograd node still uses the default stream, because a result of the warm-up is alive",
        "delete every output of the warm-up before the capture, and warm up on a side stream",
    ),
    Rule(
        code("accumulate-grad-default-stream"),
        r"legacy stream depend on a capturing",
        "backward would make the default stream wait for the capture (906): an autograd node "
        "still uses it, because a result of the warm-up is alive",
        "delete every output of the warm-up before the capture, and warm up on a side stream",
        _in_backward,
    ),
    Rule(
        code("default-stream-dependency"),
        r"legacy stream depend on a capturing",
        "the default stream would wait for the capture (906, cudaErrorStreamCaptureImplicit)",
        "use torch.cuda.current_stream() everywhere",
    ),
    Rule(
        code("autograd-leaf-stream-isolation"),
        r"dependency created on uncaptured work",
        "backward waits for a stream of the warm-up, which is not part of the capture (905)",
        "use one stream for warm-up and capture, and delete the outputs of the warm-up",
        _in_backward,
    ),
    Rule(
        code("wait-on-precapture-work"),
        r"dependency created on uncaptured work",
        "the capture waits for work submitted outside it (905, cudaErrorStreamCaptureIsolation)",
        "wait before the capture begins, or fork the side stream from the capture stream inside it",
    ),
    Rule(
        code("unjoined-side-stream"),
        r"unjoined work",
        "work on another stream was not joined before the capture ended (904, "
        "cudaErrorStreamCaptureUnjoined)",
        "before the end: torch.cuda.current_stream().wait_stream(side)",
    ),
    Rule(
        code("merge-of-captures"),
        r"merge of separate capture sequences",
        "two captures in progress would depend on each other (902, cudaErrorStreamCaptureMerge)",
        "capture one graph after the other",
    ),
    Rule(
        code("captured-event-misuse"),
        r"event last recorded in a capturing stream",
        "an event recorded in a capture is used outside it (907, cudaErrorCapturedEvent)",
        "create it with torch.cuda.Event(enable_timing=True, external=True)",
    ),
    Rule(
        code("captured-event-misuse"),
        r"invalid argument|invalid resource handle",
        "an event recorded in a capture is timed; it was never recorded on the device",
        "create it with torch.cuda.Event(enable_timing=True, external=True)",
        lambda error: any("elapsed_time" in line for line in error.lines),
    ),
    Rule(
        code("modified-template-not-reinstantiated"),
        r"graph update was not performed",
        "the executable graph does not support this update (910, cudaErrorGraphExecUpdateFailure)",
        "instantiate the graph again",
    ),
    Rule(
        INPUT_FREED_BEFORE_REPLAY,
        r"illegal memory access|detected \d+ dead tensor",
        "a kernel accessed freed memory (700, cudaErrorIllegalAddress)",
        "keep every tensor that the graph reads alive for as long as the graph",
    ),
)

COPIES = (
    (
        code("sync-d2h-copy"),
        re.compile(r"\.(cpu|numpy|tolist)\(|to\(['\"]cpu|\.type\(torch\.\w+Tensor"),
    ),
    (code("sync-print-or-format"), re.compile(r"\bprint\(|repr\(|\bf['\"]")),
    (
        code("h2d-tensor-from-python"),
        re.compile(r"torch\.(tensor|as_tensor|asarray)\(|\.new_tensor\("),
    ),
    (H2D_PAGEABLE_COPY, re.compile(r"\.copy_\(|\.cuda\(|\.to\(")),
    (code("h2d-index-with-list-or-cpu-tensor"), re.compile(r"\[")),
)
SYNCS = (
    (code("explicit-synchronize"), re.compile(r"synchronize\(|barrier\(")),
    (code("event-or-stream-query"), re.compile(r"\.query\(|elapsed_time\(")),
    (code("linalg-error-check"), re.compile(r"linalg\.|\.inverse\(|cholesky|\.svd\(")),
    (code("sync-print-or-format"), re.compile(r"\bprint\(|\brepr\(|\bf['\"]|\.format\(")),
    (SYNC_ITEM, re.compile(r"\.item\(|\bfloat\(|\bint\(|\.tolist\(")),
    (code("sync-d2h-copy"), re.compile(r"\.cpu\(|to\(['\"]cpu")),
    (
        code("sync-dynamic-shape-op"),
        re.compile(r"nonzero|masked_select|unique|repeat_interleave|bincount|argwhere"),
    ),
    (code("sync-masked-assignment"), re.compile(r"\[[^\]]*[<>=][^\]]*\]\s*=[^=]")),
    (code("sync-truth-value"), re.compile(r"^\s*(if|while|assert|elif)\b|\bbool\(|torch\.equal")),
    (code("sync-dynamic-shape-op"), re.compile(r"\[[^\]]*[<>][^\]]*\]")),
    (
        code("sync-slice-with-tensor-bounds"),
        re.compile(r"\[[^\]]*:[^\]]*\]|arange|linspace|narrow"),
    ),
    (code("pin-memory-during-capture"), re.compile(r"pin_memory")),
)

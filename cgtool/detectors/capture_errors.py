"""The finding behind an exception that ended a capture.

PyTorch reports most failed captures with an error of CUDA that names a rule, not the cause. The
cause shows in the text of the error, in the frames that were running, and in what else the process
was doing. ``RULES`` were read in the sources of PyTorch 2.8 to 2.13 and seen on an H200.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from msgspec import structs

from cgtool.detectors.host_read_rules import read_by_library
from cgtool.detectors.op_rules import Refusal
from cgtool.findings import code, page
from cgtool.model.capture import Frames
from cgtool.model.finding import Code, Finding
from cgtool.observe.call_sites import checkpointed_at
from cgtool.observe.frames import package_part
from cgtool.torch_compat.private import MissingPrivateName, ddp_figures, pins_memory

ACTIVATION_CHECKPOINTING = code("activation-checkpointing")
API_ORDER_MISUSE = code("api-order-misuse")
ON_DEFAULT_STREAM = "the capture begins on the default stream, which CUDA does not capture"
OTHER_STREAM = (
    "capture with `torch.cuda.graph`, which uses a stream of its own, or call `capture_begin` and "
    "`capture_end` under `with torch.cuda.stream(torch.cuda.Stream()):`"
)
INSIDE_ANOTHER = "a capture cannot begin while its thread is capturing another graph"
NOT_NESTED = (
    "do not nest captures: capture the inner graph before the outer one, and let the code inside "
    "the outer one run without a graph"
)
IN_A_CAPTURE = "a graph is replayed while a stream is capturing"
NOT_REPLAYED = (
    "replay it outside the capture, or call the code itself inside the capture, instead of its "
    "graph"
)
COMPILED_IN_A_CAPTURE = (
    "code of `torch.compile` replays a graph of its own while a stream is capturing"
)
WITHOUT_OWN_GRAPHS = (
    'compile without CUDA graphs (`mode="max-autotune-no-cudagraphs"`, or no mode), or let '
    "`torch.compile` capture, and capture nothing around it"
)
ONE_BY_ONE = "capture the graphs one after the other, for example under one lock"
FINALIZER_IN_CAPTURE = code("finalizer-in-capture")
EXCEPTION_IN_CAPTURE = code("exception-in-capture")
CUDNN_BENCHMARK_IN_CAPTURE = code("cudnn-benchmark-in-capture")
LAZY_LIBRARY_INIT = code("lazy-library-init")
RNG_NEW_GENERATOR = code("rng-new-generator")
RNG_UNREGISTERED_GENERATOR = code("rng-unregistered-generator")
RNG_STATE_ACCESS = code("rng-state-access")
_BENCHMARKS = "cuDNN benchmarks its algorithms for a shape that first occurs in the capture"


@dataclass(frozen=True)
class CaptureError:
    """An exception, reduced to what the rules read."""

    type: type[BaseException]
    text: str
    files: tuple[str, ...]
    """Files of its traceback, innermost first: ``/torch/optim/sgd.py`` for PyTorch's own, the bare
    name for the user's."""
    lines: tuple[str, ...]
    """The source line of each of ``files``."""
    phase: str
    """``capture forward``, ``warm-up``, ..."""
    threads: tuple[threading.Thread, ...] = ()
    """Other threads that ran during the capture, without the main thread."""
    capturing: tuple[str, ...] = ()
    """The names of threads that entered ``torch.cuda.graph`` meanwhile; in the phase ``BEGIN``, of
    those that capture."""
    has_nested: bool = False
    """Another capture was to begin inside the one that failed."""

    @property
    def begins_capture(self) -> bool:
        """``torch.cuda.graph`` was refused to synchronize the device, which it does first."""
        callers = (file for file in self.files if file not in _SYNCHRONIZES)
        return next((file for file in callers if not file.startswith("/cgtool/")), "") == _GRAPHS

    @property
    def innermost(self) -> tuple[str, str]:
        """The first of ``files`` that is not cgtool's, and its line."""
        places = zip(self.files, self.lines, strict=True)
        own = ((file, line) for file, line in places if not file.startswith("/cgtool/"))
        return next(own, ("", ""))

    @property
    def replays(self) -> bool:
        """``CUDAGraph.replay`` was refused: by PyTorch, which sets the random state first, or by
        CUDA."""
        file, line = self.innermost
        return _REPLAYED in self.text or (file == _GRAPHS and "replay(" in line)

    @property
    def calls_collective(self) -> bool:
        """A process group was called."""
        file, line = self.innermost
        return file.startswith("/torch/distributed/") and "group." in line

    def ran(self, part: str) -> bool:
        """Whether a file of the traceback has ``part`` in its name."""
        return any(part in name for name in self.files)


_SYNCHRONIZES = ("/torch/cuda/__init__.py",)
_GRAPHS = "/torch/cuda/graphs.py"
BEGIN = "begin of the capture"
"""A phase: the capture was refused before it began."""
BEGIN_INSIDE = "begin of a capture inside another"
"""The begin of a capture on a thread that is already capturing."""

Lines = tuple[tuple[Code, str], ...]
"""Codes by regular expressions for the user's source line; the first that matches counts."""


@dataclass(frozen=True)
class Rule:
    """One error of PyTorch or CUDA and the finding that it means."""

    code: Code
    pattern: str
    """A regular expression that the text matches somewhere, in any case."""
    reason: str
    """``{threads}`` stands for the names of the other threads, ``{capturing}`` of those that
    captured."""
    fix: str | None = None
    """Where the page has none as close."""
    when: Callable[[CaptureError], bool] = lambda _error: True
    only_in_capture: bool = False
    """The error means something else while nothing is captured."""
    lines: Lines = ()
    """More precise codes than ``code``."""


def explain(
    exception: BaseException,
    phase: str,
    ended: Iterable[threading.Thread] = (),
    capturing: Iterable[str] = (),
    *,
    has_nested: bool = False,
    refused: Refusal | None = None,
) -> Finding | None:
    """The finding behind an exception, without frames, which the caller knows.

    None when the exception is not about a capture. ``phase``: ``capture forward``, ``warm-up``, ...
    ``ended``: threads that have ended since the capture began; ``capturing`` and ``has_nested``: as
    of ``CaptureError``. ``refused``: what is known of the call, if CUDA refused one.
    """
    error = replace(
        _read(exception, phase, ended), capturing=tuple(capturing), has_nested=has_nested
    )
    rule = _rule_of(error)
    if rule is None:
        return None
    threads = ", ".join(thread.name for thread in error.threads[:5])
    reason = rule.reason.format(threads=threads, capturing=", ".join(error.capturing[:5]))
    rule_code, fix = rule.code, rule.fix
    if rule.lines and refused is not None:
        rule_code, fix = refused.code, refused.fix
        reason = f"{refused.subject} is not permitted when a stream is capturing (900)"
    elif rule.lines:
        # With lines to choose from, the library that ran is a better answer.
        library = read_by_library(error.files)
        rule_code = library.code if library else _code_of_line(rule.lines, error) or rule.code
        fix = (library and library.fix) or rule.fix
    explanation = page(rule_code)
    first_line = next(iter(error.text.strip().splitlines()), "")
    return Finding(
        rule_code,
        reason,
        phase=phase,
        fix=fix or (explanation.head.fix if explanation else None),
        evidence=(f"{error.type.__name__}: {first_line}",),
    )


def own_exception(exception: Exception) -> Finding:
    """The finding of captured code that raised something which is not about the capture."""
    kind = type(exception).__name__
    return Finding(EXCEPTION_IN_CAPTURE, f"the captured code raised {kind}", phase="capture")


def ended_in(op: str, frames: Frames) -> Finding:
    """The finding of a capture that an op has ended whose own error was caught."""
    line = linecache.getline(frames[0].file, frames[0].line) if frames else ""
    rule_code = _code_of(_WAITS, line) or code("sync-item")
    return Finding(
        rule_code,
        f"`{op}` is not permitted when a stream is capturing; the code caught its error, but the "
        "capture is invalid (901)",
        frames=frames,
        phase="capture",
    )


def ended_during(finding: Finding, op: str, frames: Frames) -> Finding:
    """The finding of a capture that something else has ended while an op ran."""
    return _with(finding, f"it was ended while `{op}` ran", frames)


def ended_after(finding: Finding, op: str, frames: Frames) -> Finding:
    """The finding of a capture that was ended between two ops, with the first of them."""
    return _with(finding, f"the capture was still valid after `{op}`", frames)


def _with(finding: Finding, fact: str, frames: Frames) -> Finding:
    place = f" at {frames[0].short}" if frames else ""
    return structs.replace(finding, reason=f"{finding.reason}; {fact}{place}")


def is_refusal(exception: BaseException) -> bool:
    """Whether CUDA refused a call because a stream is capturing."""
    return re.search(_REFUSED, _read(exception, "").text) is not None


def at_checkpoint(finding: Finding) -> Finding:
    """A finding about checkpointing at the line that called ``checkpoint``; any other as it is."""
    frames = checkpointed_at()
    if finding.code != ACTIVATION_CHECKPOINTING or not frames:
        return finding
    return structs.replace(finding, frames=frames)


def _read(
    exception: BaseException, phase: str, ended: Iterable[threading.Thread] = ()
) -> CaptureError:
    try:
        text = str(exception)
    except Exception:  # a __str__ of the user's
        text = ""
    frames = traceback.extract_tb(exception.__traceback__)[::-1]
    return CaptureError(
        type(exception),
        text,
        tuple(package_part(frame.filename) or Path(frame.filename).name for frame in frames),
        tuple(frame.line or "" for frame in frames),
        phase,
        tuple(
            thread
            for thread in (*ended, *threading.enumerate())
            if thread not in (threading.main_thread(), threading.current_thread())
        ),
    )


def _rule_of(error: CaptureError) -> Rule | None:
    is_users = bool(error.files) and not error.files[0].startswith("/")
    if is_users and error.lines[0].strip().startswith("raise "):
        # Its text is the user's, unless only the driver raises errors of its type.
        # PyTorch before 2.8 raises RuntimeError for these too.
        driver_error = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)
        if not issubclass(error.type, (torch.OutOfMemoryError, driver_error)):
            return None
    is_eager = error.phase in ("warm-up", "load")
    for rule in RULES:
        if is_eager and rule.only_in_capture:
            continue
        if re.search(rule.pattern, error.text, re.IGNORECASE) and rule.when(error):
            return rule
    return None


def _code_of_line(table: Lines, error: CaptureError) -> Code | None:
    """The first in ``table`` for the user's line."""
    users = (
        line
        for line, name in zip(error.lines, error.files, strict=True)
        if not name.startswith("/")
    )
    return _code_of(table, next(users, ""))


def _code_of(table: Lines, line: str) -> Code | None:
    return next((line_code for line_code, pattern in table if re.search(pattern, line)), None)


def _in_cold_ddp(error: CaptureError) -> bool:
    """In ``DistributedDataParallel``, which has run less often than it must: in its forward, which
    reads the times of its events, or in a backward."""
    is_own = error.innermost[0] == "/torch/nn/parallel/distributed.py"
    if "capture" not in error.phase or not (is_own or error.ran("/torch/autograd/graph.py")):
        return False
    kind = torch.nn.parallel.DistributedDataParallel
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    with contextlib.suppress(MissingPrivateName):
        return any(ddp_figures(each).get("iteration", 10) < 10 for each in found)
    return False


def _in_backward(error: CaptureError) -> bool:
    return "backward" in error.phase or error.ran("/torch/autograd/graph.py")


_COPIES: Lines = (
    (code("sync-d2h-copy"), r"\.(cpu|numpy|tolist)\(|to\(['\"]cpu|\.type\(torch\.\w+Tensor"),
    (code("sync-print-or-format"), r"\bprint\(|repr\(|\bf['\"]"),
    (code("h2d-tensor-from-python"), r"torch\.(tensor|as_tensor|asarray)\(|\.new_tensor\("),
    (code("h2d-pageable-copy"), r"\.copy_\(|\.cuda\(|\.to\("),
    (code("h2d-index-with-list-or-cpu-tensor"), r"\["),
)
_WAITS: Lines = (
    (code("explicit-synchronize"), r"synchronize\(|barrier\("),
    (code("event-or-stream-query"), r"\.query\(|elapsed_time\("),
    (code("linalg-error-check"), r"linalg\.|\.inverse\(|cholesky|\.svd\("),
    (code("sync-print-or-format"), r"\bprint\(|\brepr\(|\bf['\"]|\.format\("),
    (code("sync-item"), r"\.item\(|\bfloat\(|\bint\(|\.tolist\("),
    (code("sync-d2h-copy"), r"\.cpu\(|to\(['\"]cpu"),
    (
        code("sync-dynamic-shape-op"),
        r"nonzero|masked_select|unique|repeat_interleave|bincount|argwhere",
    ),
    (code("sync-masked-assignment"), r"\[[^\]]*[<>=][^\]]*\]\s*=[^=]"),
    (code("sync-truth-value"), r"^\s*(if|while|assert|elif)\b|\bbool\(|torch\.equal"),
    (code("sync-dynamic-shape-op"), r"\[[^\]]*[<>][^\]]*\]"),
    (code("sync-slice-with-tensor-bounds"), r"\[[^\]]*:[^\]]*\]|arange|narrow"),
    (code("sync-item"), r"linspace|logspace"),
    (code("pin-memory-during-capture"), r"pin_memory"),
    # With pinned memory and without `non_blocking=True`.
    (code("h2d-pageable-copy"), r"\.cuda\(|\.to\("),
    (code("sync-d2h-copy"), r"\.copy_\("),
)

_COMPILES = (
    "/torch/_dynamo/convert_frame.py", "/torch/_inductor/compile_fx.py", "/torch/_inductor/runtime/"
)  # fmt: skip
"""Modules that run only while a function is compiled, or is tuned in its first call. The rest of
these packages is also behind compiled code, and behind each custom op of Python."""
_REFUSED = "operation not permitted when stream is capturing"
_COPY = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
_REPLAYED = "Cannot prepare for replay during capturing stage"
_INVALIDATED = "previous error during capture"

# In order: the first rule that matches is the answer.
RULES = (
    Rule(
        code("oom-during-capture"),
        "",
        "the GPU ran out of memory during the capture, when PyTorch cannot free cached blocks",
        when=lambda error: (
            "capture" in error.phase and issubclass(error.type, torch.OutOfMemoryError)
        ),
    ),
    Rule(
        code("optimizer-not-capturable"),
        r"Attempting CUDA graph capture of step\(\)|If capturable=True, params and state_steps",
        "the optimizer was constructed without `capturable=True`, or has step counts on the host: "
        "its `step` refuses to be captured",
    ),
    Rule(
        code("optimizer-adafactor-keyerror"),
        r"^'?capturable'?$",
        "this optimizer checks for a capture but has no `capturable` option",
        when=lambda error: issubclass(error.type, KeyError) and error.ran("/torch/optim/"),
    ),
    Rule(
        ACTIVATION_CHECKPOINTING,
        r"use_reentrant=True, torch.utils.checkpoint is incompatible|"
        r"When use_reentrant=True|Checkpointing is not compatible with \.grad\(\)",
        "reentrant checkpointing works only under .backward(), and gradients are captured with "
        "torch.autograd.grad",
    ),
    Rule(
        ACTIVATION_CHECKPOINTING,
        r"CUDAGeneratorImpl::|graphsafe|RNG state",
        "checkpointing saves and restores the random state, which is not permitted during capture",
        when=lambda error: error.ran("/torch/utils/checkpoint.py"),
    ),
    Rule(
        RNG_NEW_GENERATOR,
        r"Cannot construct a new CUDAGeneratorImpl",
        "a CUDA generator is created while a stream is capturing",
    ),
    Rule(
        RNG_UNREGISTERED_GENERATOR,
        r"Attempt to increase offset for a CUDA generator not in capture mode",
        "random numbers come from a generator that is not registered with the graph",
        "call graph.register_generator_state(generator) before the capture; cgtool does this "
        "for generators that an ENTRY holds in variables, attributes and arguments",
    ),
    Rule(
        code("failed-capture-poisons-process"),
        r"Offset increment outside graph capture encountered unexpectedly",
        "an earlier capture failed in this process and left the random generator in capture mode",
    ),
    Rule(
        RNG_STATE_ACCESS,
        r"CUDAGeneratorImpl::|set_state_index method during capturing",
        "the random state is read or set while a stream is capturing",
    ),
    Rule(
        code("conditional-node-limits"),
        r"within data-dependent conditional nodes|conditional nodes are not supported|"
        r"conditional control flow in a cuda graph|no rule registered for HigherOrderOperator",
        "a branch of a conditional node does not support this op",
    ),
    Rule(
        code("conditional-node-limits"),
        _REFUSED,
        "`torch.cond` or `while_loop` reads its condition on the host (900)",
        "compute both branches and select with torch.where; give a loop a fixed number of steps",
        when=lambda error: error.ran("/torch/_higher_order_ops/"),
    ),
    Rule(
        code("ddp-default-stream-or-short-warmup"),
        f"{_REFUSED}|{_INVALIDATED}|uncaptured work|event last recorded in a capturing stream",
        "`DistributedDataParallel` has run fewer than 11 iterations: in the first ones it builds "
        "its buckets and times itself with events, which is not permitted during capture",
        when=_in_cold_ddp,
    ),
    Rule(
        code("caching-allocator-disabled"),
        _REFUSED,
        "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every allocation calls cudaMalloc, which is not "
        "permitted during capture (900)",
        when=lambda _error: bool(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")),
    ),
    Rule(
        code("module-hooks-rejected"),
        r"Modules must not have hooks registered at the time they are passed",
        "`make_graphed_callables` does not accept a module with hooks",
    ),
    Rule(
        code("trainable-buffer"),
        r"only parameters may be trainable",
        "a buffer of the module requires grad",
    ),
    Rule(
        code("non-tensor-sample-arg"),
        r"must contain only Tensors|Other types are not allowed",
        "`make_graphed_callables` accepts only tensors as sample arguments",
    ),
    Rule(
        code("autocast-weight-cache"),
        r"does not support the autocast caching",
        "the graph would read a weight from the autocast cache in every replay",
    ),
    Rule(
        code("unused-input"),
        r"appears? to not have been used in the graph",
        "an input or parameter that requires grad gets no gradient from the outputs",
    ),
    Rule(
        code("double-backward"),
        r"trying to differentiate twice a function that was marked",
        "a callable returned by `make_graphed_callables` cannot be differentiated twice",
    ),
    Rule(
        code("arg-order-or-kwargs-changed"),
        r"functionalized\(\) got an unexpected keyword argument|"
        r"new_fwd\(\) got an unexpected keyword argument",
        "a graphed callable takes positional arguments only",
    ),
    Rule(
        code("replay-with-other-shape"),
        r"must match the size of tensor|must match the existing size",
        "an argument of a graphed callable is copied into its sample, which has another shape",
        fix="pad the batch to the shape of the sample, or graph the callable for each shape",
        when=lambda error: error.ran("torch/cuda/graphs"),
    ),
    Rule(
        code("no-differentiable-params"),
        r"element 0 of tensors does not require grad",
        "no output requires grad, so there is no backward to capture",
        when=lambda error: error.phase != "script" or error.ran("torch/cuda/graphs"),
    ),
    Rule(
        code("capture-ended-elsewhere"),
        r"Capture must end on the same stream it began on|not ended in the same stream|"
        r"terminate a thread-local capture sequence from another thread",
        "the capture ended on a different stream or thread than it began on (903, 908)",
    ),
    Rule(
        API_ORDER_MISUSE,
        r"must be captured on a non-default stream",
        ON_DEFAULT_STREAM,
        OTHER_STREAM,
    ),
    Rule(
        API_ORDER_MISUSE,
        r"Called CUDAGraph::|already owns a captured graph|until capture_end\(\) has been called|"
        r"keep_graph=true|keep_graph=True|must have been called before calling|"
        r"CUDA Graphs debug not enabled",
        "methods of `CUDAGraph` were called in the wrong order",
    ),
    Rule(
        API_ORDER_MISUSE,
        rf"{_REPLAYED}|{_REFUSED}",
        COMPILED_IN_A_CAPTURE,
        WITHOUT_OWN_GRAPHS,
        when=lambda error: error.replays and error.ran("/torch/_inductor/cudagraph_trees.py"),
    ),
    Rule(
        API_ORDER_MISUSE,
        rf"{_REPLAYED}|{_REFUSED}",
        IN_A_CAPTURE,
        NOT_REPLAYED,
        when=lambda error: error.replays,
    ),
    Rule(
        code("first-compile-in-capture"),
        rf"{_REFUSED}|{_COPY}|CUDAGeneratorImpl::|{_INVALIDATED}",
        "`torch.compile` compiles during the capture, because the function did not run before",
        when=lambda error: any(map(error.ran, _COMPILES)),
        only_in_capture=True,
    ),
    Rule(
        code("triton-autotune-in-capture"),
        rf"{_REFUSED}|Triton Error|{_INVALIDATED}",
        "Triton compiles or autotunes a kernel during the capture, because it did not run before",
        when=lambda error: error.ran("/triton/"),
        only_in_capture=True,
    ),
    Rule(
        CUDNN_BENCHMARK_IN_CAPTURE,
        r"Capturing cudnnFind",
        _BENCHMARKS,
        only_in_capture=True,
    ),
    Rule(
        CUDNN_BENCHMARK_IN_CAPTURE,
        r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        _BENCHMARKS,
        when=lambda _error: bool(torch.backends.cudnn.benchmark),
        only_in_capture=True,
    ),
    Rule(
        LAZY_LIBRARY_INIT,
        r"(CUBLAS|CUSOLVER|CUSPARSE|CUDNN)_STATUS_(NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)|"
        r"cusolver error|cuFFT error",
        "a CUDA library creates its handle or workspace during the capture, because it was not "
        "used on this stream before",
        only_in_capture=True,
    ),
    Rule(
        code("multi-device-capture"),
        r"invalid device ordinal",
        "there is no GPU with this index",
        only_in_capture=True,
    ),
    Rule(
        code("accumulate-grad-default-stream"),
        r"stale reference to the default stream",
        "an autograd node still uses the default stream, because a result of the warm-up is alive",
    ),
    Rule(
        code("accumulate-grad-default-stream"),
        r"legacy stream depend on a capturing",
        "backward would make the default stream wait for the capture (906): an autograd node "
        "still uses it, because a result of the warm-up is alive",
        when=_in_backward,
    ),
    Rule(
        code("default-stream-dependency"),
        r"legacy stream depend on a capturing",
        "the default stream would wait for the capture (906, cudaErrorStreamCaptureImplicit)",
    ),
    Rule(
        code("autograd-leaf-stream-isolation"),
        r"dependency created on uncaptured work",
        "backward waits for a stream of the warm-up, which is not part of the capture (905)",
        when=_in_backward,
    ),
    Rule(
        code("wait-on-precapture-work"),
        r"dependency created on uncaptured work",
        "the capture waits for work submitted outside it (905, cudaErrorStreamCaptureIsolation)",
    ),
    Rule(
        code("unjoined-side-stream"),
        r"unjoined work",
        "work on another stream was not joined before the capture ended (904, "
        "cudaErrorStreamCaptureUnjoined)",
    ),
    Rule(
        code("merge-of-captures"),
        r"merge of separate capture sequences",
        "two captures in progress would depend on each other (902, cudaErrorStreamCaptureMerge)",
    ),
    Rule(
        code("captured-event-misuse"),
        r"event last recorded in a capturing stream",
        "an event recorded in a capture is used outside it (907, cudaErrorCapturedEvent)",
    ),
    Rule(
        code("captured-event-misuse"),
        r"invalid argument|invalid resource handle",
        "an event recorded in a capture is timed; it was never recorded on the device",
        when=lambda error: any("elapsed_time" in line for line in error.lines),
    ),
    Rule(
        code("modified-template-not-reinstantiated"),
        r"graph update was not performed",
        "the executable graph does not support this update (910, cudaErrorGraphExecUpdateFailure)",
    ),
    Rule(
        code("input-freed-before-replay"),
        r"illegal memory access|detected \d+ dead tensor",
        "a kernel accessed freed memory (700, cudaErrorIllegalAddress)",
        only_in_capture=True,
    ),
    Rule(
        code("h2d-pageable-copy"),
        _COPY,
        "a copy between the device and pageable host memory is not permitted when a stream is "
        "capturing",
        lines=_COPIES,
    ),
    Rule(
        API_ORDER_MISUSE,
        rf"{_REFUSED}|cannot be performed in the present state",
        INSIDE_ANOTHER,
        NOT_NESTED,
        when=lambda error: error.phase == BEGIN_INSIDE,
    ),
    Rule(
        API_ORDER_MISUSE,
        rf"{_INVALIDATED}|{_REFUSED}|cannot be performed in the present state",
        "the capture was ended by another one that was to begin inside it, on the same thread",
        NOT_NESTED,
        when=lambda error: error.has_nested,
    ),
    Rule(
        code("other-thread-cuda-call"),
        _REFUSED,
        "the capture could not begin (900): another thread ({capturing}) is capturing, and "
        "`torch.cuda.graph` synchronizes the device",
        ONE_BY_ONE,
        when=lambda error: error.phase == BEGIN and bool(error.capturing),
    ),
    Rule(
        API_ORDER_MISUSE,
        _REFUSED,
        INSIDE_ANOTHER,
        NOT_NESTED,
        # Another thread may be the one that captures.
        when=lambda error: error.begins_capture and not error.threads,
    ),
    Rule(
        code("nccl-first-call-in-capture"),
        _REFUSED,
        "a collective is not permitted when a stream is capturing (900): most often it is the "
        "first one of its process group, which connects the ranks",
        when=lambda error: error.calls_collective,
        only_in_capture=True,
    ),
    Rule(
        code("sync-item"),
        _REFUSED,
        "this line is not permitted when a stream is capturing "
        "(cudaErrorStreamCaptureUnsupported, 900): most often the host waits for the device, "
        "or copies from pageable memory",
        lines=_WAITS,
    ),
    # With no error before it, something outside the captured code ended the capture.
    Rule(
        code("other-thread-cuda-call"),
        _INVALIDATED,
        "the capture was ended by code outside it (901): `torch.cuda.graph` was entered on another "
        "thread ({capturing}), and synchronizes the device",
        ONE_BY_ONE,
        when=lambda error: bool(error.capturing),
    ),
    Rule(
        code("dataloader-pin-thread"),
        _INVALIDATED,
        "the capture was ended by code outside it (901): a `DataLoader` with pin_memory=True "
        "has a thread that calls CUDA",
        when=lambda error: any(map(pins_memory, error.threads)),
    ),
    Rule(
        code("other-thread-cuda-call"),
        _INVALIDATED,
        "the capture was ended by code outside it (901): another thread called CUDA; other "
        "threads: {threads}",
        when=lambda error: bool(error.threads),
    ),
    Rule(
        FINALIZER_IN_CAPTURE,
        _INVALIDATED,
        "the capture was ended by a call whose own error was ignored (901): that of the finalizer "
        "of an object that was garbage collected, or one that the code caught",
    ),
)

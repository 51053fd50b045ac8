"""The sentences that PyTorch and CUDA print for a failed capture, and what each of them means.

They were read in PyTorch 2.8 to 2.13 and seen on an H200.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from cgtool.findings.registry import code
from cgtool.model.finding import Code
from cgtool.torch_compat.private import pins_memory


@dataclass(frozen=True)
class Raised:
    """An exception as the rules read it."""

    text: str
    files: tuple[str, ...]
    """Of its traceback, the innermost first: ``/torch/optim/sgd.py`` for PyTorch's own, the bare
    name for the user's."""
    lines: tuple[str, ...]
    """The source lines beside them."""
    backward: bool
    kind: type[BaseException]

    def ran(self, part: str) -> bool:
        return any(part in name for name in self.files)


@dataclass(frozen=True)
class Rule:
    code: Code
    words: str
    """A regular expression that the text matches."""
    reason: str
    fix: str | None = None
    when: Callable[[Raised], bool] = lambda _raised: True


def _in_backward(raised: Raised) -> bool:
    return raised.backward or raised.ran("/torch/autograd/graph.py")


REFUSED = "operation not permitted when stream is capturing"
COPY = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
UNPINNED = (
    "a copy between the device and host memory that is not pinned is not permitted when a stream "
    "is capturing"
)
_LIBRARY = (
    "(CUBLAS|CUSOLVER|CUSPARSE|CUDNN)_STATUS_(NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)"
    "|cusolver error|cuFFT error"
)


def other_threads(_raised: Raised) -> bool:
    return any(
        one is not threading.main_thread() and one is not threading.current_thread()
        for one in threading.enumerate()
    )


def pinning_thread(_raised: Raised) -> bool:
    return any(map(pins_memory, threading.enumerate()))


# In order: the first that matches is the answer.
RULES = (
    Rule(
        code("optimizer-not-capturable"),
        r"Attempting CUDA graph capture of step\(\)|If capturable=True, params and state_steps",
        "the optimizer keeps its step count on the host, where a replay does not advance it",
        "make the optimizer with capturable=True",
    ),
    Rule(
        code("optimizer-adafactor-keyerror"),
        r"^'?capturable'?$",
        "this optimizer checks for a capture and has no capturable option",
        "leave its step() out of the graph, or use an optimizer with capturable=True",
        lambda raised: issubclass(raised.kind, KeyError) and raised.ran("/torch/optim/"),
    ),
    Rule(
        code("activation-checkpointing"),
        r"use_reentrant=True, torch.utils.checkpoint is incompatible|"
        r"When use_reentrant=True|Checkpointing is not compatible with \.grad\(\)",
        "reentrant checkpointing works only under .backward(), and gradients are captured with "
        "torch.autograd.grad",
        "use checkpoint(..., use_reentrant=False)",
    ),
    Rule(
        code("activation-checkpointing"),
        r"CUDAGeneratorImpl::|graphsafe|RNG state",
        "checkpointing saves and restores the state of the random generator, which a capture does "
        "not permit",
        "use checkpoint(..., preserve_rng_state=False) where nothing random runs inside",
        lambda raised: raised.ran("/torch/utils/checkpoint.py"),
    ),
    Rule(
        code("rng-new-generator"),
        r"Cannot construct a new CUDAGeneratorImpl",
        "a generator of the GPU is made while a stream is capturing",
        "make it once, outside the captured code",
    ),
    Rule(
        code("rng-unregistered-generator"),
        r"Attempt to increase offset for a CUDA generator not in capture mode",
        "a generator of your own draws numbers in the graph, which does not know it",
        "call CUDAGraph.register_generator_state(generator) before the capture, or use the default "
        "generator",
    ),
    Rule(
        code("failed-capture-poisons-process"),
        r"Offset increment outside graph capture encountered unexpectedly",
        "an earlier capture failed in this process, and left the random generator in capture mode",
        "run each attempt at a capture in a process of its own",
    ),
    Rule(
        code("rng-state-access"),
        r"CUDAGeneratorImpl::|set_state_index method during capturing",
        "the state of the random generator is read or set while a stream is capturing",
        "do it outside the captured code",
    ),
    Rule(
        code("conditional-node-limits"),
        r"within data-dependent conditional nodes|conditional nodes are not supported|"
        r"conditional control flow in a cuda graph|no rule registered for HigherOrderOperator",
        "this cannot stand in the branch of a conditional node",
        "move it out of the branch, or capture one graph for each branch",
    ),
    Rule(
        code("conditional-node-limits"),
        REFUSED,
        "torch.cond reads its predicate on the host in this version of PyTorch (900)",
        "use PyTorch 2.12 or newer, or compute both branches and choose with torch.where",
        lambda raised: raised.ran("/torch/_higher_order_ops/"),
    ),
    Rule(
        code("caching-allocator-disabled"),
        REFUSED,
        "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every allocation is a cudaMalloc, which CUDA does "
        "not permit during capture (900)",
        "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        lambda _raised: bool(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")),
    ),
    Rule(
        code("module-hooks-rejected"),
        r"Modules must not have hooks registered at the time they are passed",
        "make_graphed_callables takes no module that has hooks",
        "register them after make_graphed_callables",
    ),
    Rule(
        code("trainable-buffer"),
        r"only parameters may be trainable",
        "a buffer of the module requires grad",
        "make it a parameter, or detach it",
    ),
    Rule(
        code("non-tensor-sample-arg"),
        r"must contain only Tensors|Other types are not allowed",
        "make_graphed_callables takes sample arguments that are tensors, and nothing else",
        "bind the other values with functools.partial, or in a module that wraps this one",
    ),
    Rule(
        code("autocast-weight-cache"),
        r"does not support the autocast caching",
        "autocast's cache would keep a cast weight that the graph reads for ever",
        "use torch.autocast(..., cache_enabled=False)",
    ),
    Rule(
        code("unused-input"),
        r"appears? to not have been used in the graph",
        "an input or parameter that requires grad does not reach the outputs",
        "pass allow_unused_input=True, or freeze what is not used",
    ),
    Rule(
        code("double-backward"),
        r"trying to differentiate twice a function that was marked",
        "what make_graphed_callables returns cannot be differentiated twice",
        "capture the whole step, its double backward included, with torch.cuda.graph",
    ),
    Rule(
        code("arg-order-or-kwargs-changed"),
        r"functionalized\(\) got an unexpected keyword argument|"
        r"new_fwd\(\) got an unexpected keyword argument",
        "a graphed callable binds its arguments by position, and takes no keywords",
        "pass them by position, in the order of the sample arguments",
    ),
    Rule(
        code("no-differentiable-params"),
        r"element 0 of tensors does not require grad",
        "no output requires grad, so there is no backward to capture",
        "capture the forward alone",
    ),
    Rule(
        code("capture-ended-elsewhere"),
        r"Capture must end on the same stream it began on|not ended in the same stream|"
        r"terminate a thread-local capture sequence from another thread",
        "the capture was ended on another stream or thread than it began on (903, 908)",
        "use the context manager torch.cuda.graph",
    ),
    Rule(
        code("api-order-misuse"),
        r"Called CUDAGraph::|must be captured on a non-default stream|already owns a captured "
        r"graph|until capture_end\(\) has been called|keep_graph=true|keep_graph=True|"
        r"must have been called before calling|CUDA Graphs debug not enabled",
        "CUDAGraph was called in an order that it does not allow",
        "capture, then instantiate (with keep_graph=True), then replay; one capture a graph",
    ),
    Rule(
        code("first-compile-in-capture"),
        rf"{REFUSED}|{COPY}|CUDAGeneratorImpl::|previous error during capture",
        "torch.compile compiles during the capture, because nothing ran it before",
        "run the compiled callable once, with the same shapes, before the capture",
        lambda raised: raised.ran("/torch/_dynamo/") or raised.ran("/torch/_inductor/"),
    ),
    Rule(
        code("triton-autotune-in-capture"),
        rf"{REFUSED}|Triton Error|previous error during capture",
        "Triton compiles or tunes a kernel during the capture, because nothing launched it before",
        "launch the kernel once, with the same shapes and types, before the capture",
        lambda raised: raised.ran("/triton/"),
    ),
    Rule(
        code("cudnn-benchmark-in-capture"),
        r"Capturing cudnnFind|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN times its algorithms for a shape that it meets for the first time in the capture",
        "warm up with the exact shapes, types and memory format, or leave "
        "torch.backends.cudnn.benchmark off",
    ),
    Rule(
        code("lazy-library-init"),
        _LIBRARY,
        "a CUDA library makes its handle or workspace during the capture, because nothing used it "
        "before on this stream",
        "run at least one iteration before the capture, on the stream that captures",
    ),
    Rule(
        code("multi-device-capture"),
        r"invalid device ordinal",
        "there is no GPU of this number",
        "use one device for a graph, and torch.cuda.device(dev) around it",
    ),
    Rule(
        code("accumulate-grad-default-stream"),
        r"stale reference to the default stream",
        "an autograd node remembers the default stream, from a warm-up whose result is still alive",
        "drop every output of the warm-up before the capture, and warm up on a side stream",
    ),
    Rule(
        code("accumulate-grad-default-stream"),
        r"legacy stream depend on a capturing",
        "backward would make the default stream wait for the capture (906): an autograd node "
        "remembers it, from a warm-up whose result is still alive",
        "drop every output of the warm-up before the capture, and warm up on a side stream",
        _in_backward,
    ),
    Rule(
        code("default-stream-dependency"),
        r"legacy stream depend on a capturing",
        "work on the default stream would have to wait for the capture (906, "
        "cudaErrorStreamCaptureImplicit)",
        "use torch.cuda.current_stream() everywhere",
    ),
    Rule(
        code("autograd-leaf-stream-isolation"),
        r"dependency created on uncaptured work",
        "backward waits for a stream of the warm-up, which takes no part in the capture (905)",
        "use one stream for warm-up and capture, and drop the outputs of the warm-up",
        _in_backward,
    ),
    Rule(
        code("wait-on-precapture-work"),
        r"dependency created on uncaptured work",
        "the capture was made to wait for work from outside it (905, "
        "cudaErrorStreamCaptureIsolation)",
        "wait before the capture begins, or fork the side stream from the capturing one inside it",
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
        "two captures that are both in progress would depend on each other (902, "
        "cudaErrorStreamCaptureMerge)",
        "capture one graph after the other",
    ),
    Rule(
        code("captured-event-misuse"),
        r"event last recorded in a capturing stream",
        "an event that was recorded in a capture is used outside it (907, cudaErrorCapturedEvent)",
        "make it with torch.cuda.Event(enable_timing=True, external=True)",
    ),
    Rule(
        code("captured-event-misuse"),
        r"invalid argument|invalid resource handle",
        "an event that was recorded in a capture is timed as if it had really been recorded",
        "make it with torch.cuda.Event(enable_timing=True, external=True)",
        lambda raised: any("elapsed_time" in line for line in raised.lines),
    ),
    Rule(
        code("modified-template-not-reinstantiated"),
        r"graph update was not performed",
        "the executable graph cannot be changed this way (910, cudaErrorGraphExecUpdateFailure)",
        "instantiate the graph again",
    ),
    Rule(
        code("input-freed-before-replay"),
        r"illegal memory access|detected \d+ dead tensor",
        "a kernel used memory that is not there any more (700, cudaErrorIllegalAddress)",
        "keep every tensor that the graph reads alive as long as the graph",
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
    (code("h2d-pageable-copy"), re.compile(r"\.copy_\(|\.cuda\(|\.to\(")),
    (code("h2d-index-with-list-or-cpu-tensor"), re.compile(r"\[")),
)
SYNCS = (
    (code("explicit-synchronize"), re.compile(r"synchronize\(|barrier\(")),
    (code("event-or-stream-query"), re.compile(r"\.query\(|elapsed_time\(")),
    (code("linalg-error-check"), re.compile(r"linalg\.|\.inverse\(|cholesky|\.svd\(")),
    (code("sync-print-or-format"), re.compile(r"\bprint\(|\brepr\(|\bf['\"]|\.format\(")),
    (code("sync-item"), re.compile(r"\.item\(|\bfloat\(|\bint\(|\.tolist\(")),
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

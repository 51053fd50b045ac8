"""The behavior of a program on a GPU: plain PyTorch written by hand, nothing of cgtool.

Of each entry there are two: one runs eagerly, the other is captured with ``torch.cuda.graph`` after
three warm-up iterations on a side stream. Both then take part in the same loop: fresh values are
copied into the inputs, every random generator is seeded by the number of the iteration, and one
computes while the other is replayed. Outputs, gradients and whatever the code keeps must be the
same after each iteration, also a day later and after two thousand more.

A script has no twin. It prints, and a comment says what eager would print: ``print(y.item())
# eager: 6.0``. Without such a comment nothing is compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import random
import re
import runpy
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from tests.corpus.catalog import Program
from tests.forked_workers import in_fork

SECONDS = 60
GROUP = 8
"""Programs that share a process."""
_WARM_UP, _FIRST, _MORE, _DAY = 3, 6, 2000, 86_400
_MORE_SECONDS = {True: 12.0, False: 1.0}
"""By whether the program is faulty: such a one may differ late."""
_EAGER = re.compile(r"# eager: (.+?)(?:  #.*)?$", re.MULTILINE)
NOT_COMPARED = "not compared"
_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")


def truths(chosen: list[Program]) -> dict[str, dict[str, str]]:
    """By the name of the program, its ``result`` (equal, differs, refused, fails in eager, crashed,
    not compared) and the ``detail``.

    Entries run one after the other in a process of their own until a capture is refused, which
    leaves the process unusable. A script has a process for itself.
    """
    found: dict[str, dict[str, str]] = {}
    while rest := [program for program in chosen if program.name not in found]:
        group = rest[:1] if rest[0].is_script else [each for each in rest if not each.is_script]
        try:
            found |= in_fork(_answers, group, timeout=SECONDS)
        except (TimeoutError, RuntimeError) as error:
            # Which one it was shows when each is alone.
            detail = str(error).strip().splitlines()[-1]
            if len(group) == 1:
                found[group[0].name] = {"result": "crashed", "detail": detail}
            else:
                for program in group:
                    found |= truths([program])
    return found


def agrees_with(program: Program, result: str) -> bool:
    """Whether a result does not contradict the marks of a program. A mark that depends on PyTorch
    is about a backward that is a graph of its own, and here there is only one graph."""
    is_decided = all(mark.is_shown and not mark.feature for mark in program.all_marks)
    if result == NOT_COMPARED or not is_decided:
        return True
    return program.is_faulty == (result != "equal")


def _answers(group: list[Program]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for program in group:
        found[program.name] = answer = _answer(program)
        if answer["result"] not in ("equal", "differs"):
            break
    return found


def _answer(program: Program) -> dict[str, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            if program.is_script:
                result, detail = _script(program, printed)
            else:
                result, detail = _Race(program).result()
        except Differs as difference:
            result, detail = "differs", str(difference)
        except _Failed as failure:
            result, detail = failure.args
        except Exception as error:
            result, detail = "crashed", f"{type(error).__name__}: {error}"
    return {"result": result, "detail": detail}


class Differs(Exception):
    """Replay and eager are not the same."""


class _Failed(Exception):
    """Result and detail."""


@contextlib.contextmanager
def _called(result: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        text = (str(error).strip() or "no message").splitlines()[0]
        raise _Failed(result, f"{type(error).__name__}: {text}") from error


# --- entries


class Twin:
    """An entry that was loaded on its own: its callable, its inputs, its state."""

    def __init__(self, entry: Program, name: str, device: str) -> None:
        import torch

        torch.manual_seed(0)
        random.seed(0)
        module = types.ModuleType(f"{name}_{entry.file.stem}")
        sys.modules[module.__name__] = module
        # A second registration of a custom op would end the first one.
        source = entry.source.replace('"corpus::', f'"{name}_corpus::')
        exec(compile(source, str(entry.file), "exec"), vars(module))
        factory = getattr(module, entry.name)
        made = factory(device) if factory.__code__.co_argcount else factory()
        parts = made if isinstance(made, tuple) else (made,)
        self.call = parts[0]
        self.args = parts[1] if len(parts) > 1 else ()
        self.kwargs = parts[2] if len(parts) > 2 else {}
        self.backward = bool(self.args or self.kwargs)
        self.inputs = [each for each in _leaves((self.args, self.kwargs)) if _is_tensor(each)]
        self.samples = [each.detach().clone() for each in self.inputs]

    def iterate(self) -> list[Any]:
        """Outputs and gradients of one iteration."""
        import torch

        out = self.call(*self.args, **self.kwargs)
        outputs = _leaves(out)
        wanted = [each for each in outputs if _is_tensor(each) and each.requires_grad]
        if not self.backward or not wanted:
            return outputs
        leaves = _autograd_leaves(wanted)
        try:
            ones = [torch.ones_like(each) for each in wanted]
            grads = torch.autograd.grad(wanted, leaves, ones, allow_unused=True)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            self.backward = False  # it has called backward() itself
            return outputs
        return [*outputs, *grads]

    def refresh(self, iteration: int) -> None:
        """Fresh inputs, which keep signs, ranges and sums of what they are derived from."""
        import torch

        scale = 0.5 + 0.4 * math.sin(iteration) ** 2
        for tensor, sample in zip(self.inputs, self.samples, strict=True):
            floating = sample.is_floating_point() or sample.is_complex()
            fresh = sample.roll(iteration, 0) if sample.dim() and not sample.is_sparse else sample
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                tensor.copy_(fresh * scale if floating else fresh)

    def between(self) -> None:
        """Runs the loop around the code after an iteration."""
        if hasattr(self.call, "scheduler"):
            self.call.scheduler.step()

    def state(self) -> list[Any]:
        """Tensors that the code keeps, and their gradients."""
        found: list[Any] = []
        _collect(self.call, found, {}, 0)
        leaves = [each for each in found if each.is_leaf and each.requires_grad]
        return [*found, *(each.grad for each in leaves if each.grad is not None)]

    def generators(self) -> list[Any]:
        import torch

        found: list[Any] = []
        _collect((self.call, self.args, self.kwargs), found, {}, 0, keep=torch.Generator)
        return [each for each in found if each.device.type == "cuda"]


class _Race:
    """Eager against replays."""

    def __init__(self, entry: Program, device: str = "cuda") -> None:
        with _called("fails in eager"):
            self.eager = Twin(entry, "eager", device)
            self.graphed = Twin(entry, "graphed", device)
        self.is_faulty = entry.is_faulty
        self.on_gpu = device == "cuda"
        self.iteration = 0
        self.replay: Callable[[], Any] = lambda: None
        self.expected: list[Any] = []
        self.replayed: list[Any] = []
        self.more_state = 0
        """How many more values the other one keeps when the replays begin: memory for each stream,
        as they do not run on the same ones."""

    def result(self) -> tuple[str, str]:
        with _called("fails in eager"):
            for _ in range(_WARM_UP):
                self._next(self.graphed, self._warm_up)
        with _called("refused"):
            self._seed()
            self._capture()
        self.more_state = len(self.graphed.state()) - len(self.eager.state())
        for _ in range(_FIRST):
            self._compare("")
        with _a_day_later():
            for _ in range(2):
                self._compare(" later")
        end = time.perf_counter() + _MORE_SECONDS[self.is_faulty]
        while self.iteration < _MORE and time.perf_counter() < end:
            self._compare_many(50)
        return "equal", f"{self.iteration} iterations"

    def _next(self, twin: Twin, run: Callable[[Twin], Any]) -> None:
        """One iteration in eager, and the same one by ``run`` of the other."""
        for each, how in ((self.eager, Twin.iterate), (twin, run)):
            each.refresh(self.iteration)
            self._seed()
            values = how(each)
            if each is self.eager:
                self.expected = values
            each.between()
        self.iteration += 1

    def _warm_up(self, twin: Twin) -> None:
        import torch

        if not self.on_gpu:
            twin.iterate()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            twin.iterate()
        torch.cuda.current_stream().wait_stream(side)

    def _capture(self) -> None:
        import torch

        if not self.on_gpu:
            # Two eager runs: whether the entry itself repeats what it does.
            def run() -> None:
                self.replayed = self.graphed.iterate()

            self.replay = run
            return
        # With the inputs of the last warm-up, as PyTorch's recipe does: a cache that knows them
        # computes nothing.
        graph = torch.cuda.CUDAGraph()
        for generator in self.graphed.generators():
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.replayed = self.graphed.iterate()
        self.replay = graph.replay

    def _compare(self, when: str) -> None:
        """One iteration of each."""
        for where, wanted, value, differs in self._differences(when):
            if differs:
                raise Differs(f"{where} is {_short(value)} for {_short(wanted)}")

    def _compare_many(self, count: int) -> None:
        """Runs as many iterations, without a wait for the device after each."""
        import torch

        found: list[Any] = []
        for _ in range(count):
            found += [differs for *_, differs in self._differences(" in the end")]
        flags = [each for each in found if _is_tensor(each)]
        if any(each for each in found if not _is_tensor(each)) or (
            flags and torch.stack([each.to(flags[0].device) for each in flags]).any()
        ):
            raise Differs(f"in the {count} iterations before {self.iteration}")

    def _differences(self, when: str) -> Iterator[tuple[str, Any, Any, Any]]:
        """The place, both values, and whether they differ: a bool, or a tensor of the device."""
        import torch

        with _called("fails in eager"):
            self._next(self.graphed, lambda _twin: self.replay())
        where = f"iteration {self.iteration}{when}"
        pairs = ((self.expected, self.replayed), (self.eager.state(), self.graphed.state()))
        values = (value for pair in pairs for each in pair for value in each if _is_tensor(value))
        if self.on_gpu and any(not value.is_cuda for value in values):
            # Copies to pinned memory may still run.
            torch.cuda.synchronize()
        for (eager, replay), name in zip(pairs, ("output", "state"), strict=True):
            if more := len(replay) - len(eager):
                if name == "state" and more == self.more_state:
                    continue
                raise Differs(f"{where}: {len(replay)} values of {name} for {len(eager)}")
            for number, (wanted, value) in enumerate(zip(eager, replay, strict=True)):
                yield f"{where}: {name} {number}", wanted, value, _differ(wanted, value)

    def _seed(self) -> None:
        import torch

        torch.manual_seed(self.iteration)
        random.seed(self.iteration)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(self.iteration)


@contextlib.contextmanager
def _a_day_later() -> Iterator[None]:
    real = {name: getattr(time, name) for name in _CLOCKS}
    for name, clock in real.items():
        ahead = _DAY * 10**9 if name.endswith("_ns") else _DAY
        setattr(time, name, functools.partial(lambda clock, ahead: clock() + ahead, clock, ahead))
    try:
        yield
    finally:
        for name, clock in real.items():
            setattr(time, name, clock)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _leaves(value: Any) -> list[Any]:
    """Tensors, numbers and texts in outputs, in nested containers and objects."""
    from torch.utils import _pytree

    found: list[Any] = []
    for each in _pytree.tree_leaves(value):
        if _is_tensor(each) or each is None or isinstance(each, (int, float, complex, str)):
            found.append(each)
        elif dataclasses.is_dataclass(each) or hasattr(each, "__dict__"):
            found += _leaves(dict(sorted(vars(each).items())))
        elif isinstance(each, (set, frozenset)):
            found += sorted(each)
    return found


def _autograd_leaves(outputs: list[Any]) -> list[Any]:
    leaves, seen = [], set()
    nodes = [each.grad_fn for each in outputs if each.grad_fn is not None]
    while nodes:
        node = nodes.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        nodes += [other for other, _ in node.next_functions if other is not None]
    return leaves


def _collect(
    value: Any, found: list[Any], seen: dict[int, Any], depth: int, keep: Any = None
) -> None:
    """Tensors that the code keeps: by closures, attributes, containers, modules, optimizers.

    ``seen`` holds what it names: the id of an object that is gone may be another's.
    """
    import torch

    if id(value) in seen or depth > 8 or _is_of_a_library(value):
        return
    seen[id(value)] = value
    wanted = keep or torch.Tensor
    if isinstance(value, wanted):
        if value.device.type != "meta":
            found.append(value)
        return

    def inner(*values: Any) -> None:
        for each in values:
            _collect(each, found, seen, depth + 1, keep)

    if isinstance(value, dict):
        inner(*value.values())
    elif isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        inner(*value)
    elif isinstance(value, torch.optim.Optimizer):
        inner(value.param_groups, dict(value.state))
    elif isinstance(value, functools.partial):
        inner(value.func, value.args, value.keywords)
    elif hasattr(value, "__self__"):
        inner(value.__self__)
    elif hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        names = [value.__globals__.get(name) for name in value.__code__.co_names]
        # Functions and classes of other files hold nothing of this entry.
        inner(*cells, *[each for each in names if _is_state(each, value.__module__)])
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inner(vars(value))


def _is_of_a_library(value: Any) -> bool:
    """Whether it is a module of Python or PyTorch; attributes of `torch.classes` cannot be read."""
    if not isinstance(value, types.ModuleType):
        return False
    return value.__name__.partition(".")[0] in {*sys.stdlib_module_names, "numpy", "torch"}


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 : the access is the test
    except ValueError:
        return False
    return True


def _is_state(value: Any, module: str) -> bool:
    if callable(value):
        return getattr(value, "__module__", None) == module
    return isinstance(value, (list, dict)) or _is_tensor(value)


def _differ(eager: Any, replay: Any) -> Any:
    """Whether they differ by more than rounding, as a bool or a tensor that nobody waited for."""
    try:
        return _values_differ(eager, replay)
    except NotImplementedError:
        # A wrapper of its own, whose parts are compared, or of a transform that is over.
        if not hasattr(eager, "__tensor_flatten__"):
            return False
    names, _ = eager.__tensor_flatten__()
    return any(bool(_differ(getattr(eager, name), getattr(replay, name))) for name in names)


def _values_differ(eager: Any, replay: Any) -> Any:
    import torch

    if not _is_tensor(eager) or not _is_tensor(replay):
        both = isinstance(eager, float) and isinstance(replay, float)
        close = both and math.isclose(eager, replay, rel_tol=1e-4)
        return (
            not close and (eager is not replay) and (type(eager), eager) != (type(replay), replay)
        )
    if eager.shape != replay.shape or eager.dtype != replay.dtype:
        return True
    if not (_has_memory(eager) and _has_memory(replay)):
        return _has_memory(eager) != _has_memory(replay)
    if eager.is_nested:
        pairs = zip(eager.unbind(), replay.unbind(), strict=True)
        return any(bool(_differ(one, other)) for one, other in pairs)
    eager, replay = (each.detach() for each in (eager, replay))
    eager, replay = (each.to_dense() if _sparse(each) else each for each in (eager, replay))
    eager, replay = (each.dequantize() if each.is_quantized else each for each in (eager, replay))
    if not (eager.is_floating_point() or eager.is_complex()):
        return (eager != replay).any()
    wide = torch.complex128 if eager.is_complex() else torch.float64
    eager, replay = eager.to(wide), replay.to(wide)
    if not eager.numel():
        return False
    size = eager.abs().nan_to_num(0, 0, 0)
    close = (eager - replay).abs() <= 1e-3 * size + 1e-3 * size.amax() + 1e-9
    return ~(close | (eager == replay) | (eager.isnan() & replay.isnan())).all()


def _sparse(tensor: Any) -> bool:
    import torch

    return tensor.layout not in (torch.strided, torch.jagged)


def _has_memory(tensor: Any) -> bool:
    """False if the code has emptied its storage: to read it would be a fault of the device."""
    import torch

    if tensor.is_nested or tensor.layout != torch.strided or not tensor.numel():
        return True
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(tensor.untyped_storage().nbytes() >= needed)


def _short(value: Any) -> str:
    if not _is_tensor(value):
        return repr(value)[:60]
    with contextlib.suppress(Exception):
        return f"{tuple(value.shape)} {value.detach().flatten()[:3].tolist()}"
    return f"{tuple(value.shape)}"


# --- scripts


def _script(script: Program, printed: io.StringIO) -> tuple[str, str]:
    expected = _EAGER.findall(script.source)
    sys.argv = [str(script.file)]
    sys.path.insert(0, str(script.file.parent))
    with _called("refused"):
        runpy.run_path(str(script.file), run_name="__main__")
        import torch

        torch.cuda.synchronize()
    if not expected:
        return NOT_COMPARED, "no comment says what eager prints"
    lines = printed.getvalue().split("\n")[:-1]
    if len(lines) != len(expected):
        raise _Failed("crashed", f"{len(lines)} lines printed, {len(expected)} expected")
    for number, (wanted, line) in enumerate(zip(expected, lines, strict=True), 1):
        if not _same_text(wanted, line):
            return "differs", f"line {number} is {line} for {wanted}"
    return "equal", f"{len(lines)} lines"


def _same_text(wanted: str, line: str) -> bool:
    numbers = [
        [float(each) for each in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]
        for text in (wanted, line)
    ]
    if len(numbers[0]) != len(numbers[1]) or not numbers[0]:
        return wanted == line
    return all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6) for a, b in zip(*numbers, strict=True)
    )

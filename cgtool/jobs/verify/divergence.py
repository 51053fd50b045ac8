"""The first op at which replay and eager differ, and the first that produces a NaN: an eager
iteration under a recorder, next to a replay that is stepped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from cgtool.detectors.reporting import at_call
from cgtool.devices.device import Device, Followed
from cgtool.devices.stepping import (
    Stepper,
    launched_results,
    named_arguments,
    named_scalars,
)
from cgtool.jobs.verify.differences import apart, difference, is_rounded, magnitude, rounding
from cgtool.jobs.verify.evidence import Key, Results, Trial
from cgtool.jobs.verify.runner import TrialRunner, observed_iteration, results_of
from cgtool.jobs.verify.state import state_of
from cgtool.model.capture import Frames
from cgtool.model.finding import Code, Finding
from cgtool.observe.effects import UNINITIALIZED
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.observe.raw_tensors import UNUSUAL, copies, holds_byte, is_finite, raw
from cgtool.observe.tensors import tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs

_TRIES = 3
"""Runs that are compared with the first, because two runs can have the same noise."""

T = TypeVar("T")
Named = Sequence[tuple[str, torch.Tensor]]
Copies = Mapping[str, torch.Tensor]
"""What an op has written, by name."""
Noise = Mapping[str, float]
"""Largest differences between two eager runs, likewise."""
_SLACK = 8.0
"""Two runs show only a part of the noise, most of all in one op."""


class Kept(NamedTuple):
    """What an op has done in an eager run."""

    results: Copies
    scale: float
    """The largest magnitude among its arguments and results."""
    scalars: Mapping[str, str]
    """Its other arguments, as texts."""


class Given(NamedTuple):
    """What an op is given."""

    func: Any
    args: Args
    kwargs: Kwargs


class ResultRecorder(OpRecorder, Generic[T]):
    """Looks at what every op of the device has written, as soon as it has run."""

    def __init__(
        self, roots: Any, annotations: Any, device: Device, look: Callable[[int, Named, Given], T]
    ) -> None:
        """``look`` is given the number of the op, its results and its arguments."""
        super().__init__(roots, annotations)
        self._device = device
        self._look = look
        self.results: list[tuple[OpCall, T]] = []

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        output = self.run(func, args, kwargs)
        results = launched_results(call.name, func, args, kwargs, output)
        if results and not self._device.is_host_work([tensor for _, tensor in results]):
            seen = self._look(len(self.results), results, Given(func, args, kwargs))
            self.results.append((call, seen))
        return output


class _Keeper:
    """Copies results: on the device while there is room, then on the host."""

    def __init__(self, device: Device, *, scales: bool = False) -> None:
        self._left = device.free_bytes() // 2
        self._scales = scales

    def __call__(self, _number: int, results: Named, given: Given) -> Kept:
        self._left -= sum(tensor.nbytes for _, tensor in results)
        scale = 0.0
        if self._scales:
            rounded = [*map(itemgetter(1), results), *tensors_in(given[1:])]
            scale = max((magnitude(each) for each in rounded if is_rounded(each)), default=0.0)
        scalars = named_scalars(*given)
        if self._left >= 0:
            return Kept(copies(dict(results)), scale, scalars)
        with raw():
            held = {name: tensor.detach().to("cpu", copy=True) for name, tensor in results}
        return Kept(held, scale, scalars)


def _differences(
    kept: Sequence[tuple[OpCall, Kept]], number: int, results: Named, _given: Given
) -> Noise:
    """How far results are from those that an earlier run has kept."""
    before = kept[number][1].results if number < len(kept) else {}
    return _noise(before, results)


def _noise(before: Copies, results: Named) -> Noise:
    apart = {name: difference(before[name], new) for name, new in results if name in before}
    return {
        name: float("inf") if each.largest is None else float(each.largest)
        for name, each in apart.items()
    }


def _eager(
    runner: TrialRunner, trial: Trial, iteration: int, look: Callable[[int, Named, Given], T]
) -> tuple[Results, ResultRecorder[T]]:
    """The results of an eager iteration (from 0), and what was seen of those of every op in it."""
    runner.begin_eager(trial, iteration)
    make_recorder = partial(ResultRecorder, device=runner.target.device, look=look)
    return observed_iteration(runner.target, make_recorder)


def at_first_noisy(finding: Finding, runner: TrialRunner, trial: Trial) -> Finding:
    """The finding at the first op whose results differ between eager runs from the same state."""
    kept = _eager(runner, trial, 0, _Keeper(runner.target.device))[1].results
    for _ in range(_TRIES):
        _, again = _eager(runner, trial, 0, partial(_differences, kept))
        for call, noise in again.results:
            if not call.name.startswith(UNINITIALIZED) and any(noise.values()):
                return at_call(finding, call, again.record)
    return finding


def _pairs(steppers: Sequence[Stepper], kept: Sequence[tuple[OpCall, Kept]]) -> dict[int, int]:
    """The ops of a capture that an eager run has too, and which one of it that is."""
    captured = [
        (op.call.name, op.call.chain[:1], op.shapes) for stepper in steppers for op in stepper.ops
    ]
    eager = [
        (call.name, call.chain[:1], tuple(tuple(x.shape) for x in known.results.values()))
        for call, known in kept
    ]
    if captured == eager:
        return {number: number for number in range(len(eager))}
    blocks = SequenceMatcher(None, captured, eager, autojunk=False).get_matching_blocks()
    return {one + at: other + at for one, other, size in blocks for at in range(size)}


class Parting(NamedTuple):
    """Where replay and eager first differ."""

    op: str | None
    """The op; None if none is known."""
    detail: str
    """How they differ there, or why no op is known."""
    node: tuple[int, int] | None = None
    """Its last node: numbers of the graph and of the node in it."""
    equal: int = 0
    """How many ops before it have equal results."""
    frames: Frames = ()
    """The call chain of the op."""
    only_one: bool = False
    """Whether only one of the two ran this op."""
    given: tuple[str, ...] = ()
    """What eager is given there, and the graph is not."""


_NOT_REPRODUCED = Parting(
    None,
    "the op is unknown, because a replay whose nodes run one at a time does not differ from a "
    "second eager run: what differs changes from run to run",
)


class _Seen(NamedTuple):
    """An op of a replay that has just run; its tensors are only valid now."""

    call: OpCall
    number: int
    """Among all ops of the capture."""
    node: tuple[int, int]
    results: Named
    """Without what it returns and has not written: a seed that it does not need."""


class Divergence:
    """A capture that is stepped, and eager iterations to compare it with."""

    def __init__(self, runner: TrialRunner, followed: Followed) -> None:
        self.runner = runner
        self.followed = followed
        ops = [(graph, op) for graph, of in enumerate(followed.steppers) for op in of.ops]
        self.ops = [op.call for _, op in ops]
        """Of the capture, in the order in which they ran."""
        self._scalars = [op.scalars for stepper in followed.steppers for op in stepper.ops]
        self._nodes = [None if op.node is None else (graph, op.node) for graph, op in ops]
        """The last node of each."""

    def _stepped(self, trial: Trial, iteration: int) -> Generator[_Seen]:
        """The ops of a replay (from 0), each when it has run. Raises StepFailedError."""
        values = self.runner.begin_replay(trial)
        for number in range(iteration):
            for stepper in self.followed.steppers:
                stepper.step()
            values = self.runner.write_inputs(trial, number + 1, values)
        numbers = {place: at for at, place in enumerate(self._nodes)}
        for graph, stepper in enumerate(self.followed.steppers):
            lasts = [op.node for op in stepper.ops if op.node is not None]
            firsts = {stepper.first(last): last for last in lasts}
            spoiled: dict[int, list[str]] = {}
            with stepper.running():
                for node in range(stepper.count):
                    if (last := firsts.get(node)) is not None:
                        spoiled[last] = stepper.spoil(last)
                    stepper.run(node)
                    if (at := numbers.get((graph, node))) is None:
                        continue
                    unwritten = spoiled.get(node, ())
                    results = [
                        (name, tensor)
                        for name, tensor in stepper.written(node)
                        if name not in unwritten or not holds_byte(tensor, UNUSUAL)
                    ]
                    yield _Seen(self.ops[at], at, (graph, node), results)

    def find(
        self, trial: Trial, iteration: int, relative: float | None, key: Key | None = None
    ) -> Parting | None:
        """The first op of an iteration (from 0) whose results differ, and how.

        ``relative``: the largest difference, over the largest magnitude, that counts as noise; None
        for that of other kernels. ``key``: a tensor that has differed: if it does again and all ops
        agree, that is said too. Without it, None if all that the iteration leaves is equal, or was
        in one of some tries: noise that grows through a model differs from run to run.
        """
        parting = self._find(trial, iteration, relative, key)
        for _ in range(_TRIES if key is None else 0):
            if parting is None or parting.only_one:
                break
            parting = self._find(trial, iteration, relative, key)
        return parting

    def _find(
        self, trial: Trial, iteration: int, relative: float | None, key: Key | None
    ) -> Parting | None:
        keeper = _Keeper(self.runner.target.device, scales=relative is None)
        results, eager = _eager(self.runner, trial, iteration, keeper)
        kept, left = eager.results, self._left(results, key)
        noise: Sequence[tuple[OpCall, Noise]] = ()
        noise_left: Noise = {}
        if relative or key is None:
            results, again = _eager(self.runner, trial, iteration, partial(_differences, kept))
            noise = again.results
            noise_left = _noise(left, [*self._left(results, key).items()])
        pairs = _pairs(self.followed.steppers, kept)
        parting: Parting | None = None
        equal = -1
        """The last op with equal results."""
        for seen in self._stepped(trial, iteration):
            at = pairs.get(seen.number)
            if parting is not None or at is None or seen.call.name.startswith(UNINITIALIZED):
                continue
            known = noise[at][1] if at < len(noise) else {}
            op = kept[at][1]
            how = _how_apart(seen.results, op.results, known, relative, op.scale)
            if how is None:
                equal = seen.number
                continue
            parting = self._other_path(eager, pairs, equal, seen.number)
            if parting is None:
                parting = _parting(seen.call, seen.number, self.followed.record, how, seen.node)
                scalars = _scalars_apart(self._scalars[seen.number], op.scalars)
                parting = parting._replace(given=scalars)
        left_now = [*self._left(results_of(self.followed.run), key).items()]
        differs = _how_apart(left_now, left, noise_left, relative)
        if key is None and differs is None:
            return None
        if parting is None and self.ops:
            parting = self._other_path(eager, pairs, equal, len(self.ops))
        if parting is None:
            # Without an op, what may be rounding is.
            scale = max((known.scale for _, known in kept), default=0.0)
            differs = _how_apart(left_now, left, noise_left, relative, scale)
        elif key is None and parting.node is not None and not parting.only_one:
            more = self._given_apart(trial, iteration, relative, parting, pairs)
            parting = parting._replace(given=(*parting.given, *more))
        if parting is None and key is None and differs is None:
            return None
        if parting is None and differs is not None:
            ops = "every op that PyTorch dispatches has equal results"
            if not self.ops:
                ops = "the ops of compiled code are not compared"
            return Parting(None, ops)
        return parting or _NOT_REPRODUCED

    def _given_apart(
        self,
        trial: Trial,
        iteration: int,
        relative: float | None,
        parting: Parting,
        pairs: Mapping[int, int],
    ) -> Iterator[str]:
        """Which tensors the op is given that eager has others of, from one more run of each."""
        number, place = parting.equal, parting.node
        assert place is not None
        eager: dict[str, torch.Tensor] = {}

        def look(at: int, _results: Named, given: Given) -> None:
            if at == pairs[number]:
                eager.update(copies(dict(named_arguments(*given))))

        _eager(self.runner, trial, iteration, look)
        stepper = self.followed.steppers[place[0]]
        with contextlib.closing(self._stepped(trial, iteration)) as ops:
            seen = next(seen for seen in ops if seen.node == place)
            # An argument that it writes has another value by now.
            known = {tensor.data_ptr() for _, tensor in seen.results}
            for name, tensor in reversed(stepper.given(place[1])):
                if name not in eager or tensor.data_ptr() in known:
                    continue
                known.add(tensor.data_ptr())
                if (how := _how_apart([(name, tensor)], eager, {}, relative)) is not None:
                    yield f"it is given another {how}"

    def _left(self, results: Results, key: Key | None) -> Copies:
        """A copy of a tensor as an iteration left it, or of all."""
        now = dict(results)
        for name, tensor in (*state_of(self.runner.target.workload).items(), *self.runner.inputs):
            now["state", name] = tensor
        wanted = now if key is None else {key: now[key]} if key in now else {}
        return copies({" of ".join(each): tensor for each, tensor in wanted.items()})

    def _other_path(
        self, eager: ResultRecorder[Any], pairs: Mapping[int, int], after: int, before: int
    ) -> Parting | None:
        """The first op between two of the capture that eager runs and the capture did not, or that
        the capture ran alone."""
        calls = [call for call, _ in eager.results]
        begin, end = pairs.get(after, -1) + 1, pairs.get(before, len(calls))
        alone = next((at for at in range(after + 1, before) if at not in pairs), None)
        ran = "the capture ends before it"
        if after + 1 < len(self.ops):
            ran = f"the capture ran {self.ops[after + 1].name}"
        others = set(range(begin, end)) - set(pairs.values())
        if others:
            call = calls[min(others)]
            how = f"eager runs {call.name}, {ran}"
            parting = _parting(call, min(others), eager.record, how)
            return parting._replace(only_one=True)
        if alone is None:
            return None
        call = self.ops[alone]
        how = f"the capture ran {call.name}, eager does not"
        parting = _parting(call, alone, self.followed.record, how, self._nodes[alone])
        return parting._replace(only_one=True)

    def first_not_finite(self, trial: Trial, iteration: int) -> str | None:
        """The first op of a replay whose results are not finite, as in ``find``."""
        for seen in self._stepped(trial, iteration):
            is_random = seen.call.name.startswith(UNINITIALIZED)
            if not is_random and not all(is_finite(tensor) for _, tensor in seen.results):
                return _described(seen.call, seen.number, self.followed.record)
        return None


def _parting(
    call: OpCall, number: int, record: Record, how: str, node: tuple[int, int] | None = None
) -> Parting:
    frames = at_call(Finding(Code(""), ""), call, record).frames
    return Parting(_described(call, number, record), how, node, number, frames)


def _described(call: OpCall, number: int, record: Record) -> str:
    """For a message: name, number, line, module, and for an op of a backward the forward line."""
    place = at_call(Finding(Code(""), ""), call, record)
    text = f"{call.name} (op {number})"
    if place.frames:
        text += f", {_line_of(place.frames)}"
    if place.module:
        text += f", module {place.module}"
    if place.forward:
        text += f", forward {_line_of(place.forward)}"
    return text


def _line_of(frames: Frames) -> str:
    """``model.py:12`` of the innermost frame."""
    return f"{frames[0].file}:{frames[0].line}"


def _scalars_apart(captured: Mapping[str, str], eager: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"eager is given {name}={text}, the graph has kept {captured[name]}"
        for name, text in eager.items()
        if captured.get(name, text) != text
    )


def _how_apart(
    results: Named,
    expected: Copies,
    noise: Noise,
    relative: float | None,
    scale: float | None = None,
) -> str | None:
    """How the first result that differs by more than its noise does; None if none does. ``scale``:
    of what they are computed from, where it is known."""
    for name, tensor in results:
        if name not in expected:
            continue
        allowed = _SLACK * noise.get(name, 0.0)
        if relative is None:
            size = magnitude(expected[name]) if scale is None else scale
            allowed = max(allowed, rounding(expected[name].dtype, size))
        elif relative:
            allowed = max(allowed, relative * magnitude(expected[name]))
        if (how := apart(tensor, expected[name], allowed)) is not None:
            return f"`{name}`: {how}"
    return None

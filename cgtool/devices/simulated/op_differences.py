"""How the ops of two calls of captured code differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from cgtool.detectors.frozen_host_state import METADATA_ADDRESS_CHANGED, frames_of_branch
from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN, PYTHON_SCALAR_FROZEN
from cgtool.devices.simulated.graph import Step
from cgtool.model.capture import Frames
from cgtool.model.finding import Code as FindingCode
from cgtool.observe.frames import Chain, Site, frame_of, frames_of, line_of
from cgtool.observe.ops import OpCall
from cgtool.observe.script.blocks import RUNS_AGAIN
from cgtool.observe.source import deciding_line
from cgtool.observe.tensors import HOST, has_memory, is_emptied, key_of, place_of, tensors_in
from cgtool.torch_compat.private import pytree

_FEW = 64
"""Items of a tensor on the host that are looked at."""
_NUMBERS = int, float, complex, bool, str


class Texts(NamedTuple):
    """What a finding says of a comparison."""

    compared: str
    """What is found to differ: "a second call gives other values than a second replay"."""
    again: str
    """When the code runs in it: "when the code is called again"."""
    repeated: str
    """What every replay repeats."""
    fixes: Mapping[FindingCode, str]


@dataclass
class Difference:
    """The first op that is not the same in the capture and in the call after it."""

    kind: FindingCode
    reason: str
    captured: OpCall | None
    """None where the captured code has ended."""
    again: OpCall | None
    key: int | None = None
    """Of the tensor that the capture takes, and the call after it does not."""
    at: int = 0
    """The number of the op."""
    leaf: int = 0
    """The number of the argument, of those in lists, too."""
    is_number: bool = False
    """It is a number of Python."""

    def frames(self, function: str, captured: Frames, depth: int) -> Frames:
        """Where the program has the op, or what decides whether it runs. ``function``: the one
        whose statements run again; ``captured``: the frames of the capture, of which it is one;
        ``depth``: how many frames call the code again."""
        if function:
            (first, site), (second, site_again) = (
                _inside(self.captured, function),
                _inside(self.again, RUNS_AGAIN),
            )
        else:
            first, site = self._chain(self.captured, len(captured)), None
            second, site_again = self._chain(self.again, depth), None
        is_branch = self.kind == CONTROL_FLOW_FROZEN
        is_end = self.captured is None or self.again is None
        call = self.captured
        if self.captured is None or (self.again is not None and not is_branch):
            first, site, call = second, site_again, self.again
        inner = (
            frames_of_branch(first, None if is_end else second) if is_branch else frames_of(first)
        )
        if not function:
            return (*inner, *captured)
        if site is None:
            # On a thread of autograd there is the hook, or the function, that calls it.
            return (*frames_of(call.chain if call else ()), *captured)
        line = line_of(site)
        if is_branch and site_again is not None and line_of(site_again) != line:
            decides = deciding_line(site[0], (line, line_of(site_again)))
            line, inner = (decides, ()) if decides else (line, frames_of(first))
        names = [each.function for each in captured]
        outer = captured[names.index(function) + 1 if function in names else len(captured) :]
        return (*inner, replace(frame_of(site), line=line, function=function), *outer)

    @staticmethod
    def _chain(call: OpCall | None, outer: int) -> Chain:
        return () if call is None else call.chain[: len(call.chain) - outer]


def _inside(call: OpCall | None, function: str) -> tuple[Chain, Site | None]:
    """The call chain of an op within a function, and the site in that function."""
    chain = () if call is None else call.chain
    for at in reversed(range(len(chain))):
        if chain[at][0].co_qualname == function:
            return chain[:at], chain[at]
    return (), None


def equal(first: torch.Tensor, second: torch.Tensor, *, exactly: bool = False) -> bool:
    """``exactly``: to the last bit, instead of within rounding."""
    first, second = first.detach(), second.detach()
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_quantized or not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, second)
    if first.element_size() == 1:
        first, second = first.float(), second.float()
    rtol, atol = (0.0, 0.0) if exactly else (1e-3, 1e-6)
    return torch.allclose(first, second, rtol=rtol, atol=atol, equal_nan=True)


def first_difference(
    captured: list[Step],
    again: list[Step],
    texts: Texts,
    is_meant: Callable[[int | None], bool],
) -> Difference | None:
    """``is_meant``: whether a graph is to read a tensor, whatever a call takes, by its key."""
    steps = [step for step in captured if step.call is not None]
    same: dict[int | None, int | None] = {}
    same_memory: dict[int, int] = {}
    for at, first in enumerate(steps):
        second = again[at] if at < len(again) else None
        assert first.call is not None
        if second is None or second.call is None or second.call.name != first.call.name:
            after = None if second is None else second.call
            if after is not None and _is_added(steps[at:], again[at:]):
                reason = (
                    f"`{after.name}` runs {texts.again}, before `{first.call.name}`, and not in "
                    "the capture: no replay runs it"
                )
                return Difference(CONTROL_FLOW_FROZEN, reason, None, after, at=at)
            reason = _of_first_call(first.call, second, texts)
            return Difference(CONTROL_FLOW_FROZEN, reason, first.call, after, at=at)
        name, given, given_again = first.call.name, _leaves(first), _leaves(second)
        if [*map(is_tensor, given)] != [*map(is_tensor, given_again)]:
            count, now = sum(map(is_tensor, given)), sum(map(is_tensor, given_again))
            return Difference(
                CONTROL_FLOW_FROZEN,
                f"`{name}` gets another number of tensors {texts.again}, {now} where "
                f"the capture had {count}; "
                "every replay uses those of the capture"
                if count != now
                else f"`{name}` gets other arguments {texts.again}; every replay uses those of the "
                "capture",
                first.call,
                second.call,
                at=at,
            )
        for leaf, (before, after) in enumerate(zip(given, given_again, strict=True)):
            if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
                if place_of(before) == place_of(after) == HOST:
                    if equal(before, after):
                        continue
                    return Difference(
                        PYTHON_SCALAR_FROZEN,
                        f"`{name}` gets other numbers from the host {texts.again}; every replay "
                        "uses those of the capture",
                        first.call,
                        second.call,
                        at=at,
                        leaf=leaf,
                    )
                expected = same.get(key_of(before), key_of(before))
                address = _address(before)
                # Another tensor may have a result's memory, as by DLPack.
                is_same = bool(address) and same_memory.get(address) == _address(after)
                is_same |= key_of(after) == expected
                if is_same and _part_of(before) != _part_of(after):
                    return Difference(
                        PYTHON_SCALAR_FROZEN,
                        f"`{name}` gets {_part_in_words(after, before)} of a tensor {texts.again}, "
                        f"where the capture had {_part_in_words(before, after)}; every replay uses "
                        "that of the capture",
                        first.call,
                        second.call,
                        at=at,
                        leaf=leaf,
                    )
                if is_same:
                    continue
                if is_meant(key_of(before)):
                    same[key_of(before)] = key_of(after)
                else:
                    return Difference(
                        METADATA_ADDRESS_CHANGED,
                        f"`{name}` gets another tensor here {texts.again}; a replay goes on with "
                        "that of the capture",
                        first.call,
                        second.call,
                        key_of(before),
                    )
            elif isinstance(before, _NUMBERS) and before != after and before == before:
                return Difference(
                    PYTHON_SCALAR_FROZEN,
                    f"`{name}` gets {before!r} in the capture and {after!r} {texts.again}; every "
                    f"replay uses {before!r}",
                    first.call,
                    second.call,
                    at=at,
                    leaf=leaf,
                    is_number=True,
                )
        same |= zip(map(key_of, first.results), map(key_of, second.results), strict=False)
        same_memory |= zip(
            map(_address, first.results), map(_address, second.results), strict=False
        )
    if len(again) > len(steps):
        call = again[len(steps)].call
        assert call is not None
        reason = f"`{call.name}` runs {texts.again}, and not in the capture"
        return Difference(CONTROL_FLOW_FROZEN, reason, None, call, at=len(steps))
    return None


def _is_added(captured: list[Step], again: list[Step]) -> bool:
    """Whether the call runs the first op of ``again`` in addition, and goes on as the capture."""
    expected, other = _called_at(captured[0]), _called_at(again[0])
    goes_on = any(_called_at(step) == expected for step in again)
    return goes_on and all(_called_at(step) != other for step in captured)


def _called_at(step: Step) -> tuple[str, Frames]:
    """The op, and the line that calls it."""
    assert step.call is not None
    return step.call.name, frames_of(step.call.chain[:1])


def _address(tensor: torch.Tensor) -> int:
    return 0 if is_emptied(tensor) or not has_memory(tensor) else tensor.data_ptr()


def filled_on_the_host(
    captured: list[Step], again: list[Step], at: int, texts: Texts
) -> Difference | None:
    """The call fills memory on the host, and copies from it; a replay only copies. ``at``: the
    number of the op that does."""
    steps = [step for step in captured if step.call is not None]
    if at >= len(steps) or at >= len(again):
        return None
    call = steps[at].call
    return Difference(
        PYTHON_SCALAR_FROZEN,
        f"`{call.name if call else ''}` copies what the code writes on the host; {texts.again}, "
        "that is something else, and a replay writes nothing there",
        call,
        again[at].call,
        at=at,
    )


def _part_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Which part of its memory a tensor is: shape, strides, and where it begins."""
    if not has_memory(tensor):
        return (), (), 0
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _part_in_words(tensor: torch.Tensor, other: torch.Tensor) -> str:
    shape, strides, offset = _part_of(tensor)
    if shape != tuple(other.shape):
        return f"{list(shape)}"
    return f"the part at {offset}" if offset != other.storage_offset() else f"strides {strides}"


def _of_first_call(call: OpCall, second: Step | None, texts: Texts) -> str:
    reason = f"`{call.name}` runs in the captured call"
    if second is not None and second.call is not None and second.call.chain[:1]:
        site = frame_of(second.call.chain[0])
        reason += f"; {texts.again}, `{second.call.name}` runs instead, at line {site.line}"
    else:
        reason += f", and not {texts.again}"
    return f"{reason}: every replay repeats {texts.repeated}"


def signature(steps: list[Step]) -> bytes:
    """Equal for the same ops with the same numbers, whatever the tensors."""
    ops = hashlib.sha256()
    for step in steps:
        if step.call is not None:
            leaves = [None if is_tensor(leaf) else leaf for leaf in _leaves(step)]
            ops.update(repr((step.call.name, leaves)).encode())
    return ops.digest()


def functions_of(steps: list[Step]) -> list[CodeType]:
    """Whose lines call the ops."""
    calls = [step.call for step in steps if step.call is not None]
    return [call.chain[0][0] for call in calls if call.chain]


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def names_of(steps: list[Step]) -> list[str]:
    return [step.call.name for step in steps if step.call is not None]


def number_at(steps: list[Step], at: int, leaf: int) -> tuple[str, str]:
    """The name of an op, and what it gets in place of a tensor."""
    called = [step for step in steps if step.call is not None][at : at + 1]
    if not called or called[0].call is None:
        return "", ""
    values = _leaves(called[0])[leaf : leaf + 1]
    numbers = [
        _part_of(each) if not _is_number(each) else each.tolist() if is_tensor(each) else each
        for each in values
    ]
    return called[0].call.name, repr(numbers)


def _is_number(value: Any) -> bool:
    """Not a tensor on the device."""
    return not is_tensor(value) or (place_of(value) == HOST and value.numel() <= _FEW)


def _leaves(step: Step) -> list[Any]:
    return pytree.tree_leaves((step.args, step.kwargs))


def by_key(values: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for tensor in tensors_in(values):
        key = key_of(tensor)
        if key is not None:
            yield key, tensor

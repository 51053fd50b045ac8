"""States of the GPU's random generator that captured code sets: what its replays then draw.

In a capture, a state is an offset within the graph, and a seed may only be set to what it is, which
does nothing. Before a replay, PyTorch writes the generator's seed and offset to memory that the
graph's kernels read, and advances the generator by what the graph draws in sum; if that is nothing,
it does neither (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``replay_prologue``). So a replay does
not set what the code sets, and a graph that leaves the generator where it began, as ``fork_rng``
does, draws the same numbers in each replay.

A backward that sets a state of the forward's graph (``torch.utils.checkpoint``) also leaves the
generator where it began. In PyTorch 2.11 all graphs read the same memory: the backward draws the
numbers of the forward again, if nothing else that draws was replayed in between. In 2.13 each graph
has memory of its own, which nothing writes for this one. The first was seen on an H200, the second
follows from the source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import NOTE, Finding
from cgtool.observe.frames import call_user, here
from cgtool.recapture.iteration import Iteration
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import no_torch_function

RNG_STATE_SET_IN_CAPTURE = code("rng-state-set-in-capture")

_SEED_BYTES = 8
_OUTSIDE = (
    "the captured code sets {} and then draws: eager draws the same numbers in each call, a replay "
    "sets nothing and draws new ones"
)
_REPEATS = (
    "the generator is set back to where it was when the graph began, so a replay neither reads nor "
    "advances it: every replay draws the same numbers, whatever the seed"
)
_RECOMPUTES = (
    "the random state of another graph is restored here, as `torch.utils.checkpoint` does: that "
    "has no effect in a replay, and the recomputation draws different numbers than the forward"
)
_IN_ONE_GRAPH = (
    "capture forward and backward in one graph (a step that calls `backward()`), or pass "
    "`preserve_rng_state=False` if the recomputed part draws no random numbers"
)
_RECOMPUTES_AFTER = (
    "the state of another graph is set here (`torch.utils.checkpoint` does so): a replay "
    "repeats the numbers of that graph only if no other graph that draws was replayed in "
    "between"
)


_SEEDS_ITS_OWN = (
    "the captured code sets the seed or the state of a generator here: no replay does, and draws "
    "from it go on from replay to replay"
)


def seeded(iteration: Iteration, before: Iteration | None = None) -> Iterator[Finding]:
    """Generators of the code's own that an iteration seeds. ``before``: the iteration before it; a
    generator that only one of them seeds is another one in each call."""
    for number, frames in iteration.seeding.items():
        if before is None or number in before.seeding:
            yield Finding(RNG_STATE_SET_IN_CAPTURE, _SEEDS_ITS_OWN, frames, phase="capture")


class _Saved(NamedTuple):
    """A state that captured code has saved."""

    state: torch.Tensor
    graph: int
    frames: Frames


class _Set(NamedTuple):
    """A state that captured code has set."""

    what: str
    """``seed`` or ``state``; empty for the one that a graph begins with."""
    frames: Frames
    saved: _Saved | None = None
    """Where the state comes from; None for one from outside."""


class GeneratorStates:
    """Follows the default generator through the captures of one run."""

    def __init__(self, read: Callable[[], torch.Tensor], *, relative: bool = False) -> None:
        self._read = read
        self._relative = relative
        """States are those of a real capture: offsets within the graph."""
        self._saved: list[_Saved] = []
        self._graph = 0
        self._patches = Patches()
        self._start: bytes | None = None
        """State at the start of the capture in progress; None if it is not known yet."""
        self._last = _Set("", ())
        self._after = b""
        """The generator right after ``_last``."""
        self._drawing: list[_Set] = []
        """After which states the capture has drawn."""
        self._refused = False
        """The capture sets another seed, which PyTorch does not permit."""

    def begin(self) -> None:
        """A capture begins: follow the calls that save and set states, until ``end``."""
        self._graph += 1
        self._last, self._drawing = _Set("", ()), []
        self._start, self._refused = None, False
        if not self._relative:
            self._start = self._after = self._now()
        self._patches = Patches()
        cuda = torch.cuda
        self._patches.wrap(cuda, "get_rng_state", self._save)
        self._patches.wrap(cuda, "set_rng_state", self._restore)
        self._patches.wrap(torch, "set_rng_state", self._restore_host)
        for name in ("manual_seed", "manual_seed_all"):
            self._patches.wrap(cuda, name, self._seed)

    def end(self) -> Iterator[Finding]:
        """The capture is about to end: what its replays draw wrongly."""
        self._patches.close()
        if self._start is None or not self._last.what or self._refused:
            return
        self._note_draws()
        outside = [each for each in self._drawing if each.what and each.saved is None]
        for each in outside:
            what = "the seed" if each.what == "seed" else "a state from outside the graph"
            yield Finding(RNG_STATE_SET_IN_CAPTURE, _OUTSIDE.format(what), each.frames)
        if outside or not self._drawing:
            return
        others = [each.saved for each in self._drawing if each.saved]
        others = [saved for saved in others if saved.graph != self._graph]
        returns = self._now() == self._start
        if others and returns and not _has_memory_for_each_graph():
            yield Finding(
                RNG_STATE_SET_IN_CAPTURE,
                _RECOMPUTES_AFTER,
                others[0].frames,
                fix=_IN_ONE_GRAPH,
                severity=NOTE,
            )
        elif others:
            yield Finding(
                RNG_STATE_SET_IN_CAPTURE, _RECOMPUTES, others[0].frames, fix=_IN_ONE_GRAPH
            )
        elif returns:
            yield Finding(RNG_STATE_SET_IN_CAPTURE, _REPEATS, self._last.frames)

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._find_start()
        state = call_user(original, *args, **kwargs)
        self._saved.append(_Saved(state, self._graph, here()))
        return state

    def _restore(self, original: Any, new_state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with self._setting(_Set("state", here(), self._find(new_state))):
            return call_user(original, new_state, *args, **kwargs)

    def _restore_host(self, original: Any, new_state: torch.Tensor) -> Any:
        # On the simulated device both are one generator; `fork_rng` sets the host's first.
        with self._setting(self._last):
            return call_user(original, new_state)

    def _seed(self, original: Any, seed: int) -> Any:
        self._refused |= sets_other_seed(seed)
        with self._setting(_Set("seed", here())):
            return call_user(original, seed)

    @contextlib.contextmanager
    def _setting(self, state: _Set) -> Iterator[None]:
        self._find_start()
        self._note_draws()
        yield
        self._last, self._after = state, self._now()

    def _find_start(self) -> None:
        if self._start is None:
            now = self._now()
            self._start = self._after = now[:_SEED_BYTES] + bytes(len(now[_SEED_BYTES:]))

    def _note_draws(self) -> None:
        """Notes that the ops since the last look have drawn, if they have moved the generator
        on."""
        if self._now() != self._after:
            self._drawing.append(self._last)

    def _find(self, state: torch.Tensor) -> _Saved | None:
        """Where a state was saved; a copy of one is known in its own capture."""
        for saved in self._saved:
            if saved.state is state:
                return saved
        own = (saved for saved in self._saved if saved.graph == self._graph)
        return next((saved for saved in own if _content(saved.state) == _content(state)), None)

    def _now(self) -> bytes:
        # PyTorch before 2.10 refuses to read it in a capture, and refuses what the code calls too.
        with contextlib.suppress(RuntimeError):
            return _content(self._read())
        return b""


def sets_other_seed(seed: int) -> bool:
    """Whether the GPU's generator has another seed, so that a capture refuses to set this one."""
    return int(seed) != torch.cuda.initial_seed()


@cache
def _has_memory_for_each_graph() -> bool:
    header = Path(torch.__file__).parent / "include/ATen/cuda/CUDAGeneratorImpl.h"
    try:
        return "CUDAGeneratorCaptureState" in header.read_text()
    except OSError:
        return False


def _content(state: torch.Tensor) -> bytes:
    with unobserved(), no_torch_function():
        return bytes(state.tolist())

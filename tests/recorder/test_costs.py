"""Host time around captures, of what PyTorch and Triton do for them."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest
import torch

from cgtool.recorder import costs
from cgtool.recorder.costs import Before, CaptureCosts
from cgtool.torch_compat.patches import Patches


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(costs, "_now", clock)
    return clock


def module(monkeypatch: pytest.MonkeyPatch, name: str, **values: Any) -> None:
    """A module that the program has imported."""
    found = types.ModuleType(name)
    vars(found).update(values)
    monkeypatch.setitem(sys.modules, name, found)


def ignore(*_: Any) -> None: ...


def test_what_compiles_is_counted_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, patches: Patches
) -> None:
    class Autotuner:
        def _bench(self) -> str:
            clock.now += 5
            return sys.modules["triton"].compile()  # type: ignore[no-any-return]

    def compile_() -> str:
        clock.now += 70
        return "kernel"

    module(monkeypatch, "triton", compile=compile_)
    module(monkeypatch, "triton.runtime.autotuner", Autotuner=Autotuner)
    followed = CaptureCosts(patches, ignore, ignore, lambda _: False)
    assert followed.begins().compiled_ns == 0
    assert Autotuner()._bench() == "kernel"
    assert followed.compiled_ns() == 75
    assert sys.modules["triton"].compile() == "kernel"
    assert followed.begins().compiled_ns == 145
    patches.close()
    Autotuner()._bench()
    assert followed.compiled_ns() == 145


def test_what_another_capture_compiles_is_its_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, patches: Patches
) -> None:
    def compile_() -> None:
        clock.now += 70

    module(monkeypatch, "triton", compile=compile_)
    capturing: set[int] = set()
    followed = CaptureCosts(patches, ignore, ignore, capturing.__contains__)
    here = threading.get_ident()

    def on_a_thread(*, captures: bool) -> None:
        def run() -> None:
            ours = {threading.get_ident()} if captures else set()
            capturing.update(ours)
            sys.modules["triton"].compile()
            capturing.difference_update(ours)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    on_a_thread(captures=True)
    assert followed.compiled_ns(here) == 0
    # One that does not capture may work for the one that does.
    on_a_thread(captures=False)
    assert followed.compiled_ns(here) == 70
    capturing.add(here)
    sys.modules["triton"].compile()
    assert followed.compiled_ns(here) == 140


def test_what_comes_before_a_capture(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, patches: Patches
) -> None:
    seen: list[Before] = []

    class Context:
        begins = True
        is_seen = True

        def __enter__(self) -> None:
            clock.now += 3  # waits for the device, and empties caches
            if not self.is_seen:
                return
            if not self.begins:
                raise RuntimeError("another thread captures")
            seen.append(followed.begins())
            if len(seen) > 4:
                raise RuntimeError("refused by capture_begin")

        def __exit__(self, *_: object) -> None: ...

    def make_graphed_callables() -> None:
        clock.now += 40  # the warm-up of all
        for _ in range(2):
            with torch.cuda.graph():  # type: ignore[call-arg]
                clock.now += 7

    monkeypatch.setattr(torch.cuda, "graph", Context)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make_graphed_callables)
    refused: list[tuple[Any, Exception]] = []
    unseen: list[Any] = []
    followed = CaptureCosts(
        patches, lambda *call: refused.append(call), unseen.append, lambda _: False
    )
    torch.cuda.make_graphed_callables()  # type: ignore[call-overload]
    with torch.cuda.graph():  # type: ignore[call-arg]
        pass
    seen.append(followed.begins())  # capture_begin without torch.cuda.graph
    assert [(each.prepare_ns, each.warm_up_ns) for each in seen] == [
        (3, 40), (3, None), (3, None), (None, None)
    ]  # fmt: skip
    # One that raises is refused, by whoever follows `capture_begin` if it was called.
    for begins in (True, False):
        context = Context()
        context.begins = begins
        with pytest.raises(RuntimeError), context:
            pass
    assert [(type(context), str(error)) for context, error in refused] == [
        (Context, "another thread captures")
    ]
    # Nor does one call `capture_begin` that has a graph of another class.
    context = Context()
    context.is_seen = False
    with context:
        pass
    assert unseen == [context]

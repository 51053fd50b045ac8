"""The statements that a capture covers, as a function that runs them again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from cgtool.observe.script.blocks import Block, block_of


class Capture:
    """Takes the place of ``torch.cuda.graph`` and ``CUDAGraph``."""

    def __init__(self) -> None:
        self.block: Block | None = None

    def _caller(self) -> FrameType:
        return sys._getframe(2)

    def __enter__(self) -> Capture:
        self.block = block_of(self._caller())
        return self

    def __exit__(self, *_raised: object) -> None: ...

    def capture_begin(self) -> None:
        self.block = block_of(self._caller())

    def capture_end(self) -> None: ...

    def again(self) -> dict[str, Any]:
        """What its statements assign when they run once more."""
        assert self.block is not None
        assert self.block.is_ready()
        self.block.run()
        return dict(self.block.assigned())


def test_names_that_it_reads_and_assigns_are_those_of_its_beginning() -> None:
    capture, static, total = Capture(), torch.ones(2), 1
    x = static
    with capture:
        x = x * 2
        total += 1
        y = x + total
    assert total == 2
    values = capture.again()
    assert list(values) == ["x", "total", "y"]
    assert values["y"].tolist() == y.tolist() == [4.0, 4.0]


def test_state_is_as_the_first_call_left_it() -> None:
    class Model:
        def __init__(self) -> None:
            self.calls, self.__hidden = 0, 3

        def capture(self, capture: Capture) -> None:
            with capture, contextlib.nullcontext() as nothing:
                self.calls += 1
                self.out = [self.calls * each * self.__hidden for each in (1, 2)]
                assert nothing is None

    model, capture = Model(), Capture()
    model.capture(capture)
    assert capture.again()["self.out"] == [6, 12]
    assert model.calls == 2


def test_functions_of_the_program_share_its_variables() -> None:
    def assigns() -> None:
        nonlocal hidden
        hidden = counts[-1] + 10

    capture, counts, read, hidden = Capture(), [0], lambda: total, 0
    with capture:
        counts.append(counts[-1] + 1)
        total = counts[-1]
        assigns()
        y = read() + hidden
    assert y == 12
    assert capture.again()["y"] == 14
    assert (total, hidden) == (2, 12)


def test_global_names(tmp_path: Path) -> None:
    file, capture = tmp_path / "module.py", Capture()
    file.write_text("""
def assigns():
    global hidden
    hidden = total + 10
count = 0
with capture:
    count += 1
    total = count + len(counts)
    counts.append(total)
    assigns()
    y = hidden
""")
    names: dict[str, Any] = {"capture": capture, "counts": [0]}
    exec(compile(file.read_text(), file, "exec"), names)
    assert names["y"] == 12
    assert capture.again()["y"] == 13


def test_names_of_a_class_are_those_of_the_class() -> None:
    class Runner:
        def capture(self) -> None:
            with capture:
                __hidden: int = 3

                class Other:
                    def value(self) -> int:
                        return super().__sizeof__() * 0 + 1

                self.out: int = Other().value() + __hidden

    capture = Capture()
    Runner().capture()
    assert capture.again()["self.out"] == 4


def test_super_in_a_method() -> None:
    class Base:
        def value(self) -> int:
            return 5

    class Derived(Base):
        def value(self) -> int:
            capture.capture_begin()
            result = super().value()
            capture.capture_end()
            values.update(capture.again())
            return result

    capture, values = Capture(), dict[str, Any]()
    assert Derived().value() == values["result"] == 5


def test_a_context_manager_of_the_program() -> None:
    @contextlib.contextmanager
    def captured() -> Iterator[None]:
        with capture:
            yield

    capture = Capture()
    with captured():
        y = 1 + 1
    assert capture.again() == {"y": y}


def test_what_makes_no_function() -> None:
    capture, found = Capture(), list[Block | None]()

    def counts() -> Iterator[int]:
        for number in range(2):
            with capture:
                found.append(capture.block)
                if number:
                    continue
                yield number

    list(counts())
    capture.capture_begin()
    found.append(capture.block)
    assert found == [None, None, None]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_value_that_is_gone_is_not_kept_alive(is_kept: bool) -> None:
    capture, h = Capture(), torch.ones(2)
    kept = h if is_kept else None
    with capture:
        h = h + 1
    assert capture.block is not None
    assert capture.block.is_ready() == is_kept
    assert (kept is None) != is_kept

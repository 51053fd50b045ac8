"""Chains of frames: the rounds of a recursion are folded. Frames of other threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from cgtool.model.capture import Frame
from cgtool.observe.frames import (
    folded,
    frames_of_other_threads,
    locals_of,
    set_locals,
)


def chain(letters: str) -> list[Frame]:
    return [Frame("model.py", ord(letter), letter) for letter in letters]


def shown(letters: str) -> str:
    return "".join(frame.function if frame.file else "+" for frame in folded(chain(letters)))


def test_a_chain_without_a_recursion_stays_as_it_is():
    assert folded(chain("abcde")) == tuple(chain("abcde"))
    assert folded([]) == ()
    assert shown("aabb") == "aabb"
    assert shown("abab") == "abab"


def test_rounds_beyond_two_are_counted():
    assert shown("x" + "a" * 100 + "y") == "xaa+y"
    marker = folded(chain("x" + "a" * 100 + "y"))[3]
    assert marker == Frame("", 0, "... 98 more frames of this")


def test_functions_that_call_each_other_are_one_round():
    assert shown("x" + "ab" * 50 + "ay") == "xabab+ay"
    assert folded(chain("abc" * 10))[6].function == "... 24 more frames of these 3"


def test_lines_of_one_function_are_distinguished():
    frames = [Frame("model.py", line, "f") for line in (1, 2, 3, 4)]
    assert folded(frames) == tuple(frames)


def test_frames_of_other_threads_are_listed_without_the_garbage_collector(monkeypatch):
    listed = []
    current_frames = sys._current_frames

    def list_frames():
        listed.append(gc.isenabled())
        return current_frames()

    monkeypatch.setattr(sys, "_current_frames", list_frames)
    entered, left = threading.Event(), threading.Event()

    def wait():
        entered.set()
        left.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    frames = frames_of_other_threads()
    left.set()
    thread.join()
    assert thread.ident in frames
    assert threading.get_ident() not in frames
    assert listed == [False]
    assert gc.isenabled()


class _Large:
    pass


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("look", [locals_of, lambda frame: set_locals(frame, {})])
def test_what_was_read_of_a_frame_is_released(look, is_traced):
    def run():
        large, other = _Large(), 1
        reference = weakref.ref(large)
        look(sys._getframe())
        other += 1
        del large
        return reference(), other

    def trace(_frame, _event, _argument):
        return trace

    before = sys.gettrace()
    if is_traced:
        sys.settrace(trace)
    try:
        assert run() == (None, 2)
    finally:
        sys.settrace(before)


def test_locals_that_the_program_has_stay_with_it():
    value, seen = 1, locals()
    assert locals_of(sys._getframe())["value"] == 1
    assert seen["value"] == value
    assert eval("(locals_of(sys._getframe(1)), value)[1]", {**globals()}, locals()) == 1

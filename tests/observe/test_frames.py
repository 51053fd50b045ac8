"""Chains of frames: the rounds of a recursion are folded. Frames of other threads."""

from __future__ import annotations

import gc
import sys
import threading

from cgtool.model.capture import Frame
from cgtool.observe.frames import folded, frames_of_other_threads, names_in_expression


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


def _names(*_args, **_kwargs):
    frame = sys._getframe(1)
    return sorted(names_in_expression(frame.f_code, frame.f_lasti))


class _Sum:
    def __add__(self, _other):
        frame = sys._getframe(1)
        return sorted(names_in_expression(frame.f_code, frame.f_lasti))


def test_names_in_the_expression_that_runs():
    first, second, third = 1, 2, _Sum()
    of_python = _names(first, key=[second])
    of_an_operator = third + first, second
    of_c = next(map(_names, [first]))
    assert of_python == ["_names", "first", "second"]
    assert of_an_operator[0] == ["first", "third"]
    assert of_c == ["_names", "first", "map", "next"]

"""What a suspended frame does next, from its bytecode."""

from __future__ import annotations

import pytest

from cgtool.observe.suspended import names_assigned_later, names_read_later


def of_one(buffer):
    while True:
        yield buffer


def of_two(buffer):
    while True:
        yield buffer
        yield buffer


def counting(n):
    while True:
        yield n
        n += 1


def swapping(first, second):
    while True:
        yield first
        first, second = second, first


def doubling(answer):
    while True:
        value = yield answer
        answer = value * 2


def assigning_in_a_branch(answer, rare):
    while True:
        yield answer
        if rare:
            answer = 2


def assigning_for_the_log(buffer, seen):
    while True:
        yield buffer
        seen = str(buffer)
        print(seen)


def assigning_after_an_error(buffer, source):
    while True:
        try:
            yield next(source)
        except StopIteration:
            source = iter(buffer)


def assigning_at_the_end(buffer):
    yield buffer
    buffer = None
    yield buffer


@pytest.mark.parametrize(
    ("function", "read", "assigned"),
    [
        (of_one, {"buffer"}, set()),
        (of_two, {"buffer"}, set()),
        (counting, {"n"}, {"n"}),
        (swapping, {"first", "second"}, {"first", "second"}),
        (doubling, set(), {"value", "answer"}),
        (assigning_in_a_branch, {"rare", "answer"}, {"answer"}),
        (assigning_for_the_log, {"buffer"}, {"seen"}),
        (assigning_after_an_error, {"buffer", "source"}, {"source"}),
        (assigning_at_the_end, set(), {"buffer"}),
    ],
)
def test_what_it_does_next(function, read, assigned):
    code = function.__code__
    suspended = function(*[iter([1, 2])] * code.co_argcount)
    next(suspended)
    frame = suspended.gi_frame
    assert names_read_later(frame) == read
    assert names_assigned_later(frame) == assigned

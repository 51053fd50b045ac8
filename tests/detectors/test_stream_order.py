"""Vector clocks: what comes before what."""

from __future__ import annotations

from cgtool.observe.script.state import StreamOrder


class Event:
    """Anything that can be a key."""


def test_work_of_one_stream_is_in_order() -> None:
    order = StreamOrder()
    tick = order.submit(7)
    assert order.before(7, tick, 7)


def test_streams_are_not_ordered_by_themselves() -> None:
    order = StreamOrder()
    tick = order.submit(1)
    order.submit(2)
    assert not order.before(1, tick, 2)
    assert not order.before(1, tick, 0)


def test_an_event_orders_what_was_before_its_record() -> None:
    order, event = StreamOrder(), Event()
    early = order.submit(1)
    order.record(event, 1)
    late = order.submit(1)
    order.wait_event(2, event)
    assert order.before(1, early, 2)
    assert not order.before(1, late, 2)


def test_order_is_handed_on() -> None:
    order = StreamOrder()
    tick = order.submit(1)
    order.wait_stream(2, 1)
    order.wait_stream(3, 2)
    assert order.before(1, tick, 3)


def test_an_event_that_was_never_recorded_orders_nothing() -> None:
    order = StreamOrder()
    tick = order.submit(1)
    order.wait_event(2, Event())
    assert not order.before(1, tick, 2)


def test_a_wait_of_the_host_orders_everything_after_it() -> None:
    order = StreamOrder()
    tick = order.submit(1)
    assert not order.done(1, tick)
    order.host_waits(1)
    assert order.done(1, tick)
    assert order.before(1, tick, 2)
    other = order.submit(3)
    order.host_waits()
    assert order.done(3, other)


def test_the_host_waits_for_an_event_and_no_more() -> None:
    order, event = StreamOrder(), Event()
    early = order.submit(1)
    order.record(event, 1)
    late = order.submit(1)
    order.host_waits_for_event(event)
    assert order.done(1, early)
    assert not order.done(1, late)

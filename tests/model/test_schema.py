"""The metadata of a capture's fields, and what is derived from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cgtool.model.capture import (
    ArgumentList,
    Call,
    Capture,
    Copy,
    Edge,
    Function,
    Graph,
    KernelLaunch,
    Node,
)
from cgtool.model.capture_file import read, write
from cgtool.model.failure import CgtoolError
from cgtool.model.ledger import (
    COMPILE,
    CodeCall,
    Collective,
    Collectives,
    Communicator,
    Compile,
    DeviceAllocation,
    Event,
    Ledger,
    LedgerGraph,
    LedgerMemory,
    MemoryUse,
    Process,
    ReplayPlace,
    Skip,
    StepRuns,
)
from cgtool.model.measurements import GraphTimes, Profile, Samples
from cgtool.model.schema import Field, fields
from cgtool.model.validation import inconsistency
from tests import capture_format
from tests.builders import small, timed


def by_name(struct: type[msgspec.Struct]) -> dict[str, Field]:
    return {field.name: field for field in fields(struct)}


def test_a_field_knows_its_unit_range_reference_and_label() -> None:
    node, kernel = by_name(Node), by_name(KernelLaunch)
    assert (node["duration_ns"].unit, node["duration_ns"].label) == ("ns", "duration")
    assert node["stream"].refers_to == "Capture.streams"
    assert node["body"].refers_to == "Capture.graphs" and node["body"].many
    assert node["copy"].struct is Copy
    assert kernel["dynamic_shared_bytes"].label == "dynamic shared memory"
    assert kernel["grid"].shown == "box"


def test_the_page_of_the_format_says_types_and_ranges() -> None:
    page = capture_format.render([KernelLaunch, Edge, Samples, Function])
    assert "| `grid` | `tuple[int, int, int]` |" in page
    assert "| `type` | `int` | 0 to 255 |" in page
    assert "| `pairs` | `int` | 1 or more |" in page
    assert "| `registers` | `int or None` |" in page


def test_the_page_of_the_format_is_generated_from_the_structs() -> None:
    head, begin, _ = capture_format.PAGE.read_text().partition(capture_format.BEGIN)
    assert begin
    page = head + capture_format.render()
    if os.environ.get("UPDATE_GOLD"):
        capture_format.PAGE.write_text(page)
    assert capture_format.PAGE.read_text() == page


def references(item: msgspec.Struct, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the references of a struct are: names of fields, positions in tuples."""
    for field in fields(type(item)):
        value = getattr(item, field.name)
        for position, inner in enumerate(value if field.many else [value]):
            here = (*path, field.name, position) if field.many else (*path, field.name)
            if inner is None:
                continue
            if field.struct is not None:
                yield from references(inner, here)
            elif field.refers_to is not None:
                yield here


def replaced(item: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a path."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, int):
        return (*item[:first], replaced(item[first], tuple(rest), value), *item[first + 1 :])
    changed = replaced(getattr(item, first), tuple(rest), value)
    return msgspec.structs.replace(item, **{first: changed})


def filled(item: Any) -> Any:
    """A copy in which every optional reference is there: the first entry of its list."""
    changes: dict[str, Any] = {}
    for field in fields(type(item)):
        value = getattr(item, field.name)
        if field.refers_to is not None and not value:
            changes[field.name] = (0,) if field.many else 0
        elif field.struct is not None and value is not None:
            changes[field.name] = tuple(map(filled, value)) if field.many else filled(value)
    return msgspec.structs.replace(item, **changes)


def kinds(struct: type[msgspec.Struct]) -> Iterator[str]:
    """Names of the fields that are references, in a struct and those inside it."""
    for field in fields(struct):
        if field.refers_to is not None:
            yield field.name
        elif field.struct is not None:
            yield from kinds(field.struct)


def test_every_reference_out_of_range_is_reported_with_its_path() -> None:
    profile = Profile("cupti", (GraphTimes(0),))
    forward, *others = small().graphs
    with_calls = msgspec.structs.replace(forward, calls=(Call(),) * len(forward.nodes))
    capture = filled(
        msgspec.structs.replace(
            small(),
            profile=profile,
            argument_lists=(ArgumentList(()),),
            graphs=(with_calls, *others),
            ledger=Ledger(
                ("train.py",),
                1,
                0,
                processes=(Process(2, 1, (), 0),),
                graphs=(
                    LedgerGraph(
                        0,
                        0,
                        "f",
                        replayed_at=(ReplayPlace((), 1),),
                        memory=(MemoryUse(0, (0,), (), 0),),
                        collectives=0,
                    ),
                ),
                memory=(LedgerMemory(0, 1, 1),),
                events=(Event(0, "ready", 1, (0,)),),
                compiles=(Compile(0, 1, 1, COMPILE, frames=(0,)),),
                allocations=(DeviceAllocation(0, 1, 1, frames=(0,)),),
                step_runs=(StepRuns(0, 0, CodeCall("f", 0, ()), (0,), 1),),
                collectives=(
                    Collectives(
                        (Collective("all_reduce", Communicator("0", (0,)), "float32", origin=0),)
                    ),
                ),
                skips=(Skip(0, "mutated inputs"),),
            ),
        )
    )
    met = set()
    for path in references(capture):
        met.add(next(part for part in reversed(path) if isinstance(part, str)))
        for value in (-1, 10**6):
            problem = inconsistency(replaced(capture, path, value))
            assert problem is not None, path
            # The whole path is in the message: `graphs[0].nodes[3].origin`.
            text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
            assert f"`{text[1:]}` is {value}" in problem
    assert met == set(kinds(Capture))


@pytest.mark.parametrize(
    ("struct", "field", "value"),
    [
        (Node, "duration_ns", -1),
        (Node, "call", 1 << 63),
        (KernelLaunch, "grid", (1, -1, 1)),
        (KernelLaunch, "block", (1 << 32, 1, 1)),
        (Copy, "bytes", -1),
        (Edge, "type", 256),
        (Graph, "launch_ns", (5, -5)),
        (Samples, "pairs", 0),
        (Samples, "device_ns", (-0.5,)),
        (Samples, "device_ns", (2e21,)),
    ],
)
def test_a_number_out_of_range_is_not_decoded(struct: Any, field: str, value: Any) -> None:
    least = {Copy: ("dtod", 8), Edge: (0, 1), Graph: ("f", "forward"), Samples: ("eager", "step")}
    arguments = least.get(struct, (0, "kernel") if struct is Node else (0, (1, 1, 1), (1, 1, 1)))
    good = struct(*arguments)
    assert msgspec.json.decode(msgspec.json.encode(good), type=struct) == good
    bad = msgspec.json.encode(msgspec.structs.replace(good, **{field: value}))
    with pytest.raises(msgspec.ValidationError, match="Expected"):
        msgspec.json.decode(bad, type=struct)


def test_a_file_that_is_refused_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    capture = timed(small())
    for path, value, words in (
        (("graphs", 0, "nodes", 1, "duration_ns"), -1, "graphs/0.json: Expected `int` >= 0"),
        (("graphs", 0, "nodes", 1, "duration_ns"), -1, "`$.nodes[1].duration_ns`"),
        (("graphs", 1, "edges", 0, "target"), 99, "`graphs[1].edges[0].target` is 99"),
        (("memory", "allocations", 1, "freed_at"), 0, "allocation 1: freed before"),
        (("origins", 7, "forward"), 9, "`origins[7].forward` is 9"),
        (("graphs", 0, "nodes", 1, "id"), 5, "forward: its nodes are not numbered from 0"),
    ):  # fmt: skip
        file = tmp_path / "a.cgt"
        write(file, replaced(capture, path, value), {"0.dot": ""})
        with pytest.raises(CgtoolError) as caught:
            read(file)
        assert words in caught.value.failure.message

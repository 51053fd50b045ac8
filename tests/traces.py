"""Traces of other profilers, as if they had recorded replays of a capture."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from typing import Any

from cgtool.analysis.graph.kernel_names import demangle
from cgtool.model.capture import Capture

TIMED = ("kernel", "memcpy", "memset")
CATEGORIES = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
NAMES = {"memcpy": "Memcpy DtoD (Device -> Device)", "memset": "Memset (Device)"}
EXECUTABLE = 40
"""CUPTI's number of the first graph."""


def replays(
    capture: Capture,
    graphs: Sequence[int],
    *,
    ids: bool = False,
    shuffle: int | None = None,
    process: int = 4321,
) -> list[dict[str, Any]]:
    """The events of a Chrome trace in which these graphs are launched, as PyTorch 2.11 (without
    ``ids``) or 2.12 writes them. ``shuffle`` is the seed of an order that the edges admit."""
    events: list[dict[str, Any]] = []
    clock = 1_000_000
    for number, index in enumerate(graphs):
        correlation = 100 + number
        call = {"External id": 3 + number, "cbid": 311, "correlation": correlation}
        events.append(
            event("cuda_runtime", "cudaGraphLaunch", clock - 5_000, 3_000, process, process, call)
        )
        nodes = [capture.graphs[index].nodes[at] for at in admitted(capture, index, shuffle)]
        for node in nodes:
            if node.type not in TIMED:
                continue
            args: dict[str, Any] = {"device": 0, "stream": 7, "correlation": correlation}
            args["truth"] = (index, node.id)
            if node.kernel is not None:
                args |= {"grid": list(node.kernel.grid), "block": list(node.kernel.block)}
            if ids:
                args["graph id"] = EXECUTABLE + 2 * index
                args["graph node id"] = (EXECUTABLE + 2 * index) << 32 | node.id
            name = (
                demangle(capture.functions[node.kernel.function].name)
                if node.kernel is not None
                else NAMES[node.type]
            )
            duration = node.duration_ns or 1_000
            events.append(event(CATEGORIES[node.type], name, clock, duration, 0, 7, args))
            clock += duration + 200
        clock += 20_000
    return events


def admitted(capture: Capture, index: int, seed: int | None) -> list[int]:
    """Ids of the nodes in an order that the edges admit."""
    graph = capture.graphs[index]
    if seed is None:
        return [node.id for node in graph.nodes]
    draw = random.Random(seed)
    waits = [0] * len(graph.nodes)
    for edge in graph.edges:
        waits[edge.target] += 1
    ready = [node.id for node in graph.nodes if waits[node.id] == 0]
    order = []
    while ready:
        order.append(ready.pop(draw.randrange(len(ready))))
        for edge in graph.edges:
            if edge.source == order[-1]:
                waits[edge.target] -= 1
                if waits[edge.target] == 0:
                    ready.append(edge.target)
    return order


def event(
    category: str, name: str, start_ns: int, duration_ns: int, pid: int, tid: int, args: Any
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
        "ts": start_ns / 1000, "dur": duration_ns / 1000, "args": args,
    }  # fmt: skip


def eager(number: int) -> list[dict[str, Any]]:
    """A kernel outside of any graph, with the call that launched it."""
    sizes = {"grid": [1, 1, 1], "block": [64, 1, 1], "stream": 7}
    sizes |= {"graph node id": 0, "graph id": 0}
    call = {"correlation": 10_000 + number}
    return [
        event("cuda_runtime", "cudaLaunchKernel", 10 * number, 5, 4321, 4321, call),
        event("kernel", "an_eager_kernel", 10 * number + 5, 4, 0, 7, {**sizes, **call}),
    ]


def trace(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The file, with other things that PyTorch puts into it."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "displayTimeUnit": "ms",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
            *events,
            {"ph": "s", "id": 7, "pid": 4321, "tid": 4321, "ts": 1, "cat": "ac2g", "name": "ac2g"},
        ],
        "traceName": "trace.json",
    }


def nsight(path: Any, events: Sequence[dict[str, Any]], capture: Capture) -> None:
    """The tables of an export of Nsight Systems that hold these events, which have ids."""
    mangled = {demangle(function.name): function.name for function in capture.functions}
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT)")
    common = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    common += "correlationId INTEGER, globalPid INTEGER, graphNodeId INTEGER"
    database.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({common}, demangledName INTEGER, shortName "
        "INTEGER, mangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,"
        " blockY INTEGER, blockZ INTEGER, graphId INTEGER)"
    )
    for table in ("MEMCPY", "MEMSET"):
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} ({common}, bytes INTEGER)")
    texts: dict[str, int] = {}
    for each in events:
        if each["cat"] not in CATEGORIES.values():
            continue
        args, start = each["args"], round(each["ts"] * 1000)
        values = [start, start + round(each["dur"] * 1000), 0, args["stream"]]
        values += [args["correlation"], 281476838981743, args["graph node id"] or None]
        kind = each["cat"].removeprefix("gpu_").upper()
        if kind == "KERNEL":
            ids = [
                texts.setdefault(text, len(texts) + 1)
                for text in (each["name"] + " as NVIDIA writes it", each["name"].partition("<")[0],
                             mangled.get(each["name"], each["name"]))
            ]  # fmt: skip
            values += [*ids, *args["grid"], *args["block"], args["graph id"]]
        else:
            values.append(4)
        marks = ", ".join("?" * len(values))
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{kind} VALUES ({marks})", values)
    database.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in texts.items()]
    )
    database.commit()
    database.close()

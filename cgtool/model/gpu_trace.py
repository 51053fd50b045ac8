"""A Chrome trace of ``torch.profiler``, and the records of GPU work in traces of any profiler.

Events are kept as their own text. Only those of GPU work and of graph launches are decoded, so a
trace takes little more memory than its file, unpacked.
"""

from __future__ import annotations

import gzip
import re
import shlex
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, structs

from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import open_regular

EVENTS = "traceEvents"
KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
"""The categories of GPU work in a Chrome trace, and the node type of each."""
MAX_BYTES = 8 << 30
"""The largest trace that is read, decompressed."""
_LOW = (1 << 32) - 1
_ONE_OF_SEVERAL = 1 << 40
"""Added to a device: the process that uses it, where its calls do not tell which one that is."""
_MOST_NS = 1 << 63
_CATEGORY = re.compile(rb'"cat"\s*:\s*"(kernel|gpu_memcpy|gpu_memset|cuda_runtime|cuda_driver)"')
_CALL = re.compile(rb'"name"\s*:\s*"([^"]*)"')
_CORRELATION = re.compile(rb'"correlation"\s*:\s*(\d+)')
_PROCESS = re.compile(rb'"pid"\s*:\s*(\d+|"(?:[^"\\]|\\.)*")')
_GRAPH_LAUNCH = re.compile(rb"^cu(da)?GraphLaunch")
GZIP_MAGIC, ZIP_MAGIC, SQLITE_MAGIC = b"\x1f\x8b", b"PK", b"SQLite format 3\x00"
EXPORT = "nsys export --type sqlite --include-json false"
_FIX = (
    "write it with `prof.export_chrome_trace('trace.json')` of torch.profiler, or with "
    f"`{EXPORT} REPORT`"
)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One kernel, memcpy or memset that a graph launch ran."""

    row: int
    """Its place in the trace: the number of the event or of the row."""
    type: str
    """``kernel``, ``memcpy`` or ``memset``."""
    name: str
    """The name of the kernel, mangled or not."""
    start_ns: int
    end_ns: int
    launch: tuple[int, ...]
    """Device or process, and correlation id: all records of one launch share them. More numbers
    where several processes launched a graph with that id."""
    size: tuple[int, ...] = ()
    """Grid and block of a kernel, if the trace has them."""
    graph: int | None = None
    """CUPTI's number of the executable graph."""
    node: int | None = None
    """CUPTI's number of the node in it, which counts the nodes in the order of creation."""
    process: int | None = None
    """The process that launched the graph; None where it may be one of several."""
    is_rest: bool = False
    """The trace began after its launch, so nodes that ran before it may be missing."""


def node_and_graph(number: int | None, graph: int | None) -> tuple[int | None, int | None]:
    """The node's own number and that of its executable graph, from CUPTI's two ids.

    The id of a node has the graph in its upper half, which PyTorch's own exporter cuts off. Both
    are 0 for work outside graphs.
    """
    if not number and not graph:
        return None, None
    number = number or 0
    return number & _LOW, (number >> 32) or graph


class ChromeTrace(msgspec.Struct):
    """A trace of ``torch.profiler``."""

    head: dict[str, Raw]
    """Its other keys, as they are. Empty in a trace that is a bare list of events."""
    events: list[Raw]
    records: list[Record]
    """Work that graph launches ran, in order of the file."""
    outside: int
    """Kernels, memcpys and memsets that ran outside graphs."""
    unusable: int
    """Records without a usable time, which are in neither."""
    names: dict[int, str]
    """Names of devices that have one instead of a number, as tools that merge traces write them."""


def first_bytes(path: Path) -> bytes:
    """Enough of a file to see what it is."""
    with open_regular(path, "a trace", _FIX) as file:
        return file.read(len(SQLITE_MAGIC))


def read_chrome(path: Path) -> ChromeTrace:
    """A Chrome trace, compressed or not. Raises CgtoolError (exit 2) for anything else."""
    try:
        data = _unpacked(path)
        if not data:
            raise _bad(path, "it is empty")
        is_list = data[:64].lstrip()[:1] == b"["
        head: dict[str, Raw] = {EVENTS: Raw(data)} if is_list else _decode(data, dict[str, Raw])
        if EVENTS not in head:
            raise _bad(path, f"it is JSON, but has no `{EVENTS}`")
        if b'"cgtool"' in bytes(head.get("otherData", b"")):
            raise _bad(path, "cgtool wrote it, so it already has the lines")
        return _read(path, head, _decode(head.pop(EVENTS), list[Raw]))
    except msgspec.ValidationError as error:
        raise _bad(path, f"its JSON is not that of a trace: {error}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        problem = f"neither a database nor valid JSON: {' '.join(str(error).split())[:200]}"
        raise _bad(path, problem) from error


def _unpacked(path: Path) -> bytes:
    with open_regular(path, "a trace", _FIX) as file:
        if file.read(2) != GZIP_MAGIC:
            file.seek(0)
            data = file.read(MAX_BYTES + 1)
        else:
            file.seek(0)
            try:
                with gzip.GzipFile(fileobj=file) as packed:
                    data = packed.read(MAX_BYTES + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise usage(
                    f"{path}: the file is cut off or damaged: {error}",
                    why="a program that is killed while it exports leaves such a file",
                    fix="export the trace again",
                ) from error
    if len(data) > MAX_BYTES:
        raise usage(
            f"{path}: more than {MAX_BYTES >> 30} GiB",
            fix="trace fewer steps: `schedule=` of torch.profiler.profile",
        )
    return data


def _decode(data: bytes | Raw, kind: Any) -> Any:
    return msgspec.json.decode(data, type=kind)


def _bad(path: Path, problem: str) -> CgtoolError:
    if path.suffix == ".nsys-rep":
        problem = "its name is that of an Nsight Systems report"
        fix = f"{EXPORT} {shlex.quote(str(path))}"
    elif first_bytes(path).startswith(ZIP_MAGIC):
        problem = "it is a zip file, as captures are"
        fix = "cgtool annotate TRACE --with FILE.cgt -o OUT"
    else:
        fix = _FIX
    return usage(f"{path}: not a trace that cgtool can annotate: {problem}", fix=fix)


def _read(path: Path, head: dict[str, Raw], events: list[Raw]) -> ChromeTrace:
    work: list[int] = []
    calls: dict[tuple[int, int], bool] = {}
    processes: dict[bytes, int] = {}
    devices: dict[str, int] = {}
    hip = False
    for at, event in enumerate(events):
        text = bytes(event)
        if (category := _CATEGORY.search(text)) is None:
            continue
        if not category[1].startswith(b"cuda"):
            work.append(at)
        elif correlation := _CORRELATION.search(text):
            name = _CALL.search(text)
            call = name[1] if name else b""
            hip |= call.startswith(b"hip")
            process = _PROCESS.search(text)
            # A call of the runtime and the driver's call in it have the same number.
            pid = process[1] if process else b"0"
            owner = int(pid) if pid.isdigit() else processes.setdefault(pid, -1 - len(processes))
            key = int(correlation[1]), owner
            calls[key] = calls.get(key, False) or _GRAPH_LAUNCH.match(call) is not None
    if hip:
        raise usage(
            f"{path}: a trace of an AMD GPU",
            why="cgtool records CUDA graphs, so its captures come from NVIDIA GPUs",
            fix="profile the program on an NVIDIA GPU",
        )
    decoded = [record for at in work if (record := _record(at, events[at], devices))]
    if work and not decoded:
        raise _bad(
            path,
            f"none of its {len(work):,} kernels, memcpys and memsets has a time (`ts` and `dur`) "
            "and arguments",
        )
    records = sorted(_of_graphs(decoded, calls), key=lambda record: record.row)
    outside, unusable = len(decoded) - len(records), len(work) - len(decoded)
    names = {number: name for name, number in devices.items()}
    return ChromeTrace(head, events, records, outside, unusable, names)


def _of_graphs(
    records: Iterable[Record], calls: Mapping[tuple[int, int], bool]
) -> Iterator[Record]:
    """The records that graph launches ran, with the process. ``calls``: by number and process,
    whether it launched a graph. A merged trace has several processes, each of which numbers its own
    calls, and a record does not name its process: it is one that made all calls of the device."""
    launches: dict[int, list[int]] = defaultdict(list)
    others: set[int] = set()
    for (number, process), is_graph in calls.items():
        if is_graph:
            launches[number].append(process)
        else:
            others.add(number)
    # A trace may lack all calls: it is then of one process.
    processes = {process for own in launches.values() for process in own} or {0}
    devices: dict[int, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        devices[record.launch[0]][record.launch[1]].append(record)
    for device, groups in devices.items():
        kept = {
            number: _of_graph(group, bool(launches.get(number)), number in others)
            for number, group in groups.items()
        }
        turns = {
            number: _turns(group, len(launches[number]))
            for number, group in kept.items()
            if len(launches.get(number, ())) > 1
        }
        callers = [launches[number] for number in kept if kept[number] and number in launches]
        owners = processes.intersection(*callers)
        is_shared = not owners or any(len(set(own)) > 1 for own in turns.values())
        alone = min(owners) if len(owners) == 1 else _ONE_OF_SEVERAL + device
        for number, group in kept.items():
            own = launches.get(number, [])
            if is_shared and len(own) > 1:
                for record, turn in zip(group, turns[number], strict=True):
                    yield structs.replace(record, launch=(*record.launch, *turn))
                continue
            owner = alone if not is_shared else own[0] if own else None
            is_rest = not own and number not in others
            for record in group:
                yield structs.replace(record, process=owner, is_rest=is_rest)


def _of_graph(group: Sequence[Record], by_graph: bool, by_other: bool) -> list[Record]:
    """The records of a group that a graph ran. ``by_graph``, ``by_other``: calls with
    this number launched a graph, or did something else."""
    if by_other:
        is_launch = by_graph and len(group) > 1 and all(each.node is None for each in group)
    else:
        # The window of a profiler may begin between a launch and what it runs. Of calls, only a
        # graph's launch runs several kernels.
        is_launch = by_graph or len(group) > 1
    return [each for each in group if is_launch or each.node is not None]


def _turns(records: Sequence[Record], launches: int) -> list[tuple[int, ...]]:
    """For each record, which of these launches, which share a number, it belongs to; () where that
    is unknown. A launch runs each node once. Without node ids, the launches can be told apart only
    if they follow one another and run the same kernels."""
    order = sorted(range(len(records)), key=lambda at: records[at].start_ns)
    size = len(order) // launches
    kernels = [(records[at].name, records[at].size) for at in order]
    is_repeated = kernels == kernels[:size] * launches
    runs: Counter[tuple[int | None, int]] = Counter()
    turns: list[tuple[int, ...]] = [()] * len(order)
    for rank, at in enumerate(order):
        record = records[at]
        if record.node is not None:
            turns[at] = record.graph or 0, runs[record.graph, record.node]
            runs[record.graph, record.node] += 1
        elif is_repeated:
            turns[at] = (rank // size,)
    return turns


def _record(number: int, event: Raw, devices: dict[str, int]) -> Record | None:
    """None for an event without the fields that its kind always has, or with no possible time.
    ``devices``: the numbers of those that have a name."""
    fields = _decode(event, dict[str, Any])
    args = fields.get("args")
    start, duration = fields.get("ts"), fields.get("dur")
    if not isinstance(args, dict) or not isinstance(start, int | float):
        return None
    kind = KINDS.get(str(fields.get("cat")))
    if not isinstance(duration, int | float) or kind is None or fields.get("ph") != "X":
        return None
    if not all(abs(each) * 1000 < _MOST_NS for each in (start, duration)):
        return None
    correlation, node_id, graph_id = (
        _whole(args.get(key)) for key in ("correlation", "graph node id", "graph id")
    )
    node, graph = node_and_graph(node_id, graph_id)
    size = [*_sizes(args, "grid"), *_sizes(args, "block")]
    begin = round(start * 1000)
    pid = fields.get("pid")
    device = _whole(pid)
    if device is None:
        device = devices.setdefault(str(pid), -1 - len(devices)) if pid else 0
    return Record(
        number,
        kind,
        str(fields.get("name", "")),
        begin,
        max(begin, round((start + duration) * 1000)),
        (device, -1 - number if correlation is None else correlation),
        tuple(size) if len(size) == 6 else (),
        graph,
        node,
    )


def _sizes(args: dict[str, Any], key: str) -> list[int]:
    value = args.get(key)
    sizes = map(_whole, value) if isinstance(value, list) else ()
    return [size for size in sizes if size is not None]


def _whole(value: Any) -> int | None:
    """Tools that edit a trace may write ``100.0`` for 100."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None

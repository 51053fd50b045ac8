"""Nsight Systems' SQLite export: the records of graph nodes, and a copy with a table of ours.

The tables and their columns are NVIDIA's (SQLite Export Schema Reference). They are created as they
are needed: each is asked for before it is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cgtool.model.failure import CgtoolError, usage
from cgtool.model.gpu_trace import EXPORT, Record, node_and_graph

NODES, KERNELS = "CGTOOL_NODES", "CGTOOL_KERNELS"
"""The table and the view that are added to the copy."""
COLUMNS = {
    "node": "node",
    "op": "op",
    "module": "module",
    "line": "line",
    "forwardOp": "forward op",
    "forwardLine": "forward line",
    "matchedBy": "matched by",
}
"""Columns of ours, in Nsight's spelling, and the arguments of a kernel in a Chrome trace."""
_WORK = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
}
_COLUMNS_OF = "SELECT name FROM pragma_table_info(?)"
_NEEDED = ("start", "end", "globalPid", "correlationId", "graphNodeId")
_NAMES = ("mangledName", "demangledName")
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_EXPORT = f"{EXPORT} REPORT.nsys-rep"
_TRACE = "nsys profile --cuda-graph-trace=node ..."


class NsightTrace:
    """An export. Raises CgtoolError (exit 2) for any other database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._database(f"{path.absolute().as_uri()}?mode=ro") as database:
            tables = {
                name: {row[0] for row in database.execute(_COLUMNS_OF, (name,))}
                for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
            }
            if "StringIds" not in tables or not any(name in tables for name in _WORK.values()):
                raise usage(
                    f"{path}: not an Nsight Systems export with CUDA activity: it has no table "
                    f"{_WORK['kernel']}",
                    fix=f"{_TRACE}, then {_EXPORT}",
                )
            if NODES in tables:
                raise usage(f"{path}: cgtool wrote it, so it already has the lines")
            self.records: list[Record] = []
            self._kernel_columns = tables.get(_WORK["kernel"], set())
            self.ids: dict[int, tuple[int, int]] = {}
            """For each row: the process, and the id of the node as in the export."""
            self.outside = 0
            self.whole_graphs = self._count(database, tables, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
            """Launches of graphs that were recorded without their kernels."""
            for type_, table in _WORK.items():
                if table in tables:
                    self._read(database, type_, table, tables[table])

    @contextlib.contextmanager
    def _database(self, uri: str) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as database, database:
                database.text_factory = lambda text: text.decode(errors="replace")
                yield database
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # Python decodes the text of an error strictly.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                # Of the copy: whoever writes it names the file.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            is_locked = code == sqlite3.SQLITE_BUSY
            raise usage(
                f"{self.path}: the database cannot be read: {error}",
                fix="wait until the program that writes it has ended"
                if is_locked
                else f"export again: {_EXPORT}",
            ) from error

    def _count(
        self, database: sqlite3.Connection, tables: Mapping[str, set[str]], table: str
    ) -> int:
        if table not in tables:
            return 0
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def _read(
        self, database: sqlite3.Connection, type_: str, table: str, columns: set[str]
    ) -> None:
        text, sizes = "''", ""
        needed = _NEEDED
        if type_ == "kernel":
            # Demanglers differ, mangled names do not. Reports without them have no such column, or
            # leave it empty.
            names = [name for name in _NAMES if name in columns]
            needed += (*(() if names else _NAMES[:1]), *_SIZES)
            text = f"(SELECT value FROM StringIds WHERE id = coalesce({', '.join(names)}, NULL))"
            sizes = f", {', '.join(_SIZES)}"
        if missing := [name for name in needed if name not in columns]:
            raise self._unknown(database, f"{table} has no column {', '.join(missing)}")
        # The node's number in the lower half of its id may be 0; outside of graphs, both ids are.
        has_graph = "graphId" in columns
        graph, is_node = (
            ("graphId", "(graphNodeId OR graphId)") if has_graph else ("NULL", "graphNodeId")
        )
        (total,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
        rows = database.execute(
            f"SELECT start, end, globalPid, correlationId, graphNodeId, {graph}, {text}{sizes} "
            f"FROM {table} WHERE graphNodeId IS NOT NULL AND {is_node}"
        )
        before = len(self.records)
        for start, end, process, correlation, number, graph_id, kernel, *size in rows:
            numbers = [start, end, process or 0, correlation or 0, number, graph_id or 0, *size]
            if not all(isinstance(value, int) for value in numbers):
                raise self._unknown(database, f"a row of {table} has {numbers}")
            row = len(self.records)
            node, executable = node_and_graph(number, graph_id)
            self.ids[row] = (process, number)
            launch = (process or 0, correlation or -1 - row)
            name = str(kernel or "")
            self.records.append(
                Record(
                    row,
                    type_,
                    name,
                    start,
                    max(start, end),
                    launch,
                    tuple(size),
                    executable,
                    node,
                    launch[0],
                )
            )
        self.outside += total - (len(self.records) - before)

    def _unknown(self, database: sqlite3.Connection, problem: str) -> CgtoolError:
        try:
            found = database.execute(
                "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'"
            ).fetchone()
        except sqlite3.Error:
            found = None
        return usage(
            f"{self.path}: its schema {found[0] if found else '(no version)'} is unknown: "
            f"{problem}",
            why="cgtool was written for schema 3.25.0, of Nsight Systems 2026.2",
            fix=f"trace and export with a newer Nsight Systems: {_TRACE}, then {_EXPORT}",
        )

    def write(self, path: Path, known: Iterable[tuple[int, int, Mapping[str, str]]]) -> None:
        """A copy with the table ``CGTOOL_NODES``: (process, node id, facts of the node)."""
        shutil.copyfile(self.path, path)
        with self._database(path.absolute().as_uri()) as database:
            database.execute(
                f"CREATE TABLE {NODES} (globalPid INTEGER, graphNodeId INTEGER, "
                f"{', '.join(COLUMNS)}, PRIMARY KEY (globalPid, graphNodeId))"
            )
            database.executemany(
                f"INSERT INTO {NODES} VALUES (?, ?{', ?' * len(COLUMNS)})",
                (
                    [process, number, *map(facts.get, COLUMNS.values())]
                    for process, number, facts in known
                ),
            )
            if self._kernel_columns:
                database.execute(self._view())

    def _view(self) -> str:
        known = self._kernel_columns
        shown = ["deviceId", "streamId", "correlationId", "globalPid", "graphNodeId"]
        columns = [f"k.{name}" if name in known else f"NULL AS {name}" for name in shown]
        ours = [f"n.{name}" for name in COLUMNS]
        names = [name for name in ("shortName", *_NAMES) if name in known]
        name = f"coalesce({', '.join(f'k.{name}' for name in names)}, NULL)"
        return (
            f"CREATE VIEW {KERNELS} AS SELECT k.start, k.end, k.end - k.start AS duration, "
            f"{', '.join(columns)}, s.value AS kernel, {', '.join(ours)} "
            f"FROM {_WORK['kernel']} k LEFT JOIN StringIds s ON s.id = {name} "
            f"LEFT JOIN {NODES} n ON n.graphNodeId = k.graphNodeId "
            "AND n.globalPid IS k.globalPid"  # may be NULL
        )

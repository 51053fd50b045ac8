"""Replays that run node by node (``--step``), so that a node that fails is known."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ledger import merge
from cgtool.analysis.ledger_findings import node_faults
from cgtool.analysis.reports import place_of
from cgtool.devices.stepping import StepFailedError
from cgtool.model.journal import Command, JournalWriter
from cgtool.model.ledger import NodeFailure
from cgtool.model.records import NodeFailed, Stepped
from cgtool.program.boundary import first_line
from cgtool.recorder.captures import Captures
from cgtool.recorder.recorded_device import RecordedDevice, SteppedGraph
from cgtool.recorder.replays import GraphReplays
from cgtool.torch_compat.patches import Patches


class Steps:
    """Runs the nodes of each replay."""

    def __init__(
        self, device: RecordedDevice, owner: Any, journal: JournalWriter, captures: Captures,
        graphs: dict[int, Any], patches: Patches,
    ) -> None:  # fmt: skip
        """``owner``: the class that has ``replay``; ``graphs``: as of ``GraphFollower``."""
        self._stepped = device.step_graphs(patches)
        self._journal = journal
        self._captures = captures
        self._graphs: dict[int, GraphReplays] = graphs
        patches.wrap(owner, "replay", self._replay)
        patches.wrap(device.graph_class, "instantiate", self._instantiate)

    def _replay(self, original: Callable[[Any], None], cuda_graph: Any) -> None:
        live = self._graphs.get(id(cuda_graph))
        if live is not None and live.stepped is None:
            self._prepare(live, cuda_graph)
        if live is None or live.stepped is None or isinstance(live.stepped, str):
            original(cuda_graph)
            return
        error: Exception | None = None
        try:
            live.stepped.step(original, cuda_graph, is_idle=not self._captures.are_in_progress)
        except StepFailedError as failed:
            error = failed.error
            with self._journal.protected():
                self._failed(live, live.stepped, failed)
        if error is not None:
            raise error.with_traceback(None) from None  # as the program would see it

    def _prepare(self, live: GraphReplays, cuda_graph: Any) -> None:
        # After a fault the driver says nothing about nodes anymore.
        self._captures.write_all()
        with self._journal.protected():
            try:
                live.stepped, why = self._stepped(cuda_graph), None
            except Exception as error:  # it replays as it would without --step
                live.stepped = why = first_line(error)
            self._journal.append(Stepped(live.number, why))

    def _instantiate(self, original: Callable[[Any], None], cuda_graph: Any) -> None:
        original(cuda_graph)
        live = self._graphs.get(id(cuda_graph))
        if live is not None:
            live.stop_stepping()

    def _failed(self, live: GraphReplays, stepped: SteppedGraph, failed: StepFailedError) -> None:
        """Note which node it was, and say it at once: the program may not end as others do."""
        evidence: tuple[str, ...] = ()
        with self._journal.protected():
            evidence = stepped.evidence(failed.node)
        error = first_line(failed.error)
        failure = NodeFailure(failed.node, live.cells[0], error, evidence)
        self._journal.append(NodeFailed(live.number, failure))
        capture = merge(Command((), 0), [self._journal.journal])
        for finding in node_faults(capture):
            place = place_of(finding.frames)
            module = f", module {finding.module}" if finding.module else ""
            at = f" ({file_line(place)} in {place.function}{module})" if place else ""
            lines = (f"error: {finding.reason}{at}", *finding.evidence)
            os.write(2, ("\n  ".join(lines) + "\n").encode(errors="replace"))

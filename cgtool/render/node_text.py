"""A node as the prompt of ``cgtool debug -i`` shows it: where a replay has stopped, its source, its
call chain, and all facts about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from cgtool.analysis.graph.places import file_line, frames_of
from cgtool.analysis.stepped import launch_facts, values_text
from cgtool.analysis.units import names_text
from cgtool.model.capture import Capture, Frame, Frames, Graph, Node, TensorValues
from cgtool.model.sources import Sources
from cgtool.render.labels import Labels
from cgtool.render.table import BAD, Hanging, plain
from cgtool.render.text import shown_file, visible

_INDENT = "    "
_TENSORS = 4
"""That a stop shows."""
_EDGES = 20
"""Into a node, or out of it, that its facts list."""
_AROUND = 5
"""Lines before and after the one of a node."""


class NodeTexts:
    """Texts for the nodes of one capture, of one line each."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._labels = Labels(capture)
        self._sources = Sources(capture.sources)

    def stop(
        self,
        graph: Graph,
        node: Node,
        values: Sequence[TensorValues],
        before: str,
        width: int | None,
    ) -> Iterator[RenderableType]:
        """A node, what was written, and the source line. ``before``: a word before the first line;
        ``width``: of a line, if it is limited."""
        place = self._labels.places.of(node)
        name = place.op or self._labels.nodes.title(node)
        lead = plain(f"{before}{graph.name} {node.id}/{len(graph.nodes)}  ", "bold")
        head = plain("  ".join(filter(None, (name, place.module, file_line(place.line)))))
        tensors = [_values(each) for each in values[:_TENSORS]]
        joined = "  ".join(each.plain for each in (lead, head, *tensors[:1]))
        if tensors and (width is None or cell_len(joined) - 2 <= width):
            head.append_text(plain("  ")).append_text(tensors.pop(0))
        yield Hanging(lead, head)
        for tensor in tensors:
            yield plain(_INDENT).append_text(tensor)
        if len(values) > _TENSORS:
            yield plain(f"{_INDENT}and {len(values) - _TENSORS} more tensors")
        if place.line is not None and (source := self._sources.line(place.line).strip()):
            yield _quoted(f"{_INDENT}{place.line.line} | {source}", "dim")

    def where(self, node: Node) -> Iterator[Text]:
        """Its call chain, and that of the forward op; the innermost call last, as in pdb."""
        origin = None if node.origin is None else self._capture.origins[node.origin]
        chain = frames_of(self._capture, node.origin)
        forward = frames_of(self._capture, None if origin is None else origin.forward)
        yield from self._calls(chain)
        if forward and origin is not None:
            yield plain(f"backward of {origin.autograd_node or 'a forward op'}, called at")
            yield from self._calls(forward)
        if not chain and not forward:
            yield plain("no Python line is known")

    def _calls(self, frames: Frames) -> Iterator[Text]:
        for frame in reversed(frames):
            yield plain(f"  {shown_file(frame.file)}:{frame.line} in {frame.function}", "cyan")
            if source := self._sources.line(frame).strip():
                yield _quoted(f"  -> {source}")

    def listing(self, node: Node) -> Iterator[Text]:
        """The source around its line."""
        frame = self._labels.places.of(node).line
        if frame is None or not self._sources.line(frame):
            yield plain("no source is known")
            return
        yield plain(shown_file(frame.file), "cyan")
        around = range(max(1, frame.line - _AROUND), frame.line + _AROUND + 1)
        lines = {number: self._sources.line(Frame(frame.file, number, "")) for number in around}
        last = max(number for number, source in lines.items() if source)
        for number, source in lines.items():
            if number <= last:
                mark, style = ("->", "bold") if number == frame.line else ("  ", "")
                yield _quoted(f"{number:5} {mark} {source.expandtabs()}".rstrip(), style)

    def info(self, graph: Graph, node: Node, values: Sequence[TensorValues]) -> Iterator[Text]:
        """All that is known: names and lines, launch, arguments, memory, edges, values."""
        yield plain(f"node {node.id} of {graph.name}: {node.type}", "bold")
        lines = list(self._labels.of(node).tooltip[1:])
        if node.call is not None and node.call < len(graph.calls):
            arguments = graph.calls[node.call].arguments
            if arguments is not None:
                known = self._capture.argument_lists[arguments].arguments
                lines += [f"{argument.name}: {argument.value}" for argument in known]
        if node.kernel is not None:
            lines += list(launch_facts(self._capture, node))[1:]
        if node.stream is not None:
            lines.append(f"on {self._capture.streams[node.stream].name}")
        before = [str(edge.source) for edge in graph.edges if edge.target == node.id]
        after = [str(edge.target) for edge in graph.edges if edge.source == node.id]
        lines += [f"edges from {names_text(before, _EDGES)}"] if before else []
        lines += [f"edges to {names_text(after, _EDGES)}"] if after else []
        for line in lines:
            yield plain(f"{_INDENT}{visible(line)}")
        for each in values:
            yield plain(f"{_INDENT}{each.name} {each.type}: {values_text(each)}")


def _quoted(line: str, style: str = "") -> Text:
    """A line of source, which is cut where there is no room."""
    text = plain(line, style)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _values(values: TensorValues) -> Text:
    """``out float32[32,64] -1.2 … 3.4, 3 NaN``."""
    text = plain(f"{values.name} {values.type}")
    if values.minimum is not None:
        text.append_text(plain(f" {values.minimum:.4g} … {values.maximum:.4g}"))
    if values.nans:
        first = f" at {list(values.first)} first" if values.first else ""
        text.append_text(plain(f", {values.nans:,} NaN{first}", BAD))
    if values.infinities:
        text.append_text(plain(f", {values.infinities:,} infinite"))
    return text

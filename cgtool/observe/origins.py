"""The tables of frames and origins that the nodes of a capture refer to by index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from cgtool.model.capture import Frame, Frames, Origin
from cgtool.observe.frames import Site, SiteKey, frame_of, key_of, line_of
from cgtool.observe.generated import Source
from cgtool.observe.ops import OpCall, Record

Entry = TypeVar("Entry")


class OriginTable:
    """Each frame and each origin, once."""

    def __init__(self, entry: Frame | None = None) -> None:
        """``entry`` is the line of the entry point, which calls without a frame outside torch
        get: those of a bare ``nn.Sequential``."""
        self._entry = entry
        self._frames: dict[Frame, int] = {}
        self._origins: dict[Origin, int] = {}
        self._sites: dict[SiteKey, tuple[Site, int]] = {}
        self._calls: dict[tuple[object, ...], int] = {}
        self._chains: dict[int, tuple[Sequence[Site], tuple[int, ...]]] = {}
        """The frames of a chain, by its id; it is kept."""

    @property
    def frames(self) -> Frames:
        return tuple(self._frames)

    @property
    def origins(self) -> tuple[Origin, ...]:
        return tuple(self._origins)

    def after(self, frames: int, origins: int) -> tuple[Frames, tuple[Origin, ...]]:
        """Frames and origins without the first of them: so many, and so many."""
        return _after(self._frames, frames), _after(self._origins, origins)

    def _frame(self, site: Site) -> int:
        key = key_of(site)
        known = self._sites.get(key)
        if known is None:
            index = self._frames.setdefault(frame_of(site), len(self._frames))
            # The site is kept, so that the id of its code object stays its own.
            known = self._sites[key] = (site, index)
        return known[1]

    def _chain(self, chain: Sequence[Site], forward: int | None) -> tuple[int, ...]:
        if chain:
            return tuple(map(self._frame, chain))
        if forward is None and self._entry is not None:
            return (self._frames.setdefault(self._entry, len(self._frames)),)
        return ()

    def _frames_of(self, chain: Sequence[Site]) -> tuple[int, ...]:
        """The frames of a chain that many calls share."""
        known = self._chains.get(id(chain))
        if known is None:
            known = self._chains[id(chain)] = chain, tuple(map(self._frame, chain))
        return known[1]

    def add_site(
        self,
        *,
        op: str | None,
        chain: Sequence[Site],
        module: tuple[str, str] | None,
        annotations: tuple[str, ...],
        autograd_node: str | None,
        forward: int | None = None,
    ) -> int:
        """The index of an origin, new or known."""
        origin = Origin(
            op=op,
            module=module[0] if module else None,
            module_type=module[1] if module else None,
            frames=self._chain(chain, forward),
            autograd_node=autograd_node,
            forward=forward,
            annotations=annotations,
        )
        return self._origins.setdefault(origin, len(self._origins))

    def add_generated(
        self,
        op: str | None,
        source: Source,
        chain: Sequence[Site],
        autograd_node: str | None = None,
    ) -> int:
        """The index of the origin of generated code, which ``chain`` calls. The lines of that of a
        backward, which an autograd node runs, are those of its forward."""
        if op is None and source.ops:
            op = "aten::" + "+".join(name.removeprefix("aten.") for name in source.ops)
        known = (self._frames.setdefault(frame, len(self._frames)) for frame in source.frames)
        path, kind = source.module or (None, None)
        # Dynamo runs the compiled function as if all of it were at its first line.
        at_head = bool(source.frames and chain and line_of(chain[0]) == chain[0][0].co_firstlineno)
        frames = (*known, *self._chain(chain[at_head:], None))
        forward = None
        if autograd_node is not None and source.frames:
            line = Origin(module=path, module_type=kind, frames=frames)
            forward, frames = self._origins.setdefault(line, len(self._origins)), ()
        origin = Origin(
            op=op,
            module=path,
            module_type=kind,
            frames=frames,
            autograd_node=autograd_node,
            forward=forward,
        )
        return self._origins.setdefault(origin, len(self._origins))

    def add(self, call: OpCall, record: Record) -> int:
        """The index of the origin of an op call, with its forward call if it ran in backward.

        A backward op inherits the module and the annotations of its forward call: no module runs
        in backward, and a reader wants the layer that the gradient belongs to.
        """
        forward_call = record.forward_of(call)
        forward = None
        module, annotations = call.module, call.annotations
        if forward_call is not None and forward_call is not call:
            forward = self.add(forward_call, record)
            module = module or forward_call.module
            annotations = annotations or forward_call.annotations
        # On a GPU, what autograd runs in its threads has no line but that of the forward.
        chain = () if forward is not None and call.is_autograds else call.chain
        # A loop repeats a call, and so does another capture: it is looked up before its origin is
        # built.
        frames = self._frames_of(chain)
        key = (call.name, frames, module, annotations, call.autograd_node, forward)
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = self.add_site(
                op=call.name,
                chain=chain,
                module=module,
                annotations=annotations,
                autograd_node=call.autograd_node,
                forward=forward,
            )
        return known


def _after(entries: dict[Entry, int], first: int) -> tuple[Entry, ...]:
    # From the end: a program's tables are long, and what is new is little.
    return tuple(islice(reversed(entries), len(entries) - first))[::-1]

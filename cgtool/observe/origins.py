"""The tables of frames and origins that the nodes of a capture refer to by index."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.model.capture import Frame, Origin
from cgtool.observe.frames import Site, SiteKey, frame_of, key_of
from cgtool.observe.ops import OpCall, Record


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

    @property
    def frames(self) -> tuple[Frame, ...]:
        return tuple(self._frames)

    @property
    def origins(self) -> tuple[Origin, ...]:
        return tuple(self._origins)

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
            return tuple(self._frame(site) for site in chain)
        if forward is None and self._entry is not None:
            return (self._frames.setdefault(self._entry, len(self._frames)),)
        return ()

    def add_site(
        self,
        *,
        op: str | None,
        chain: Sequence[Site],
        module: tuple[str, str] | None,
        annotations: tuple[str, ...] = (),
        autograd_node: str | None = None,
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

    def add_generated(self, op: str | None, frames: Sequence[Frame], chain: Sequence[Site]) -> int:
        """The index of the origin of generated code: ``frames`` are the lines that it was generated
        from, and ``chain`` calls it."""
        known = (self._frames.setdefault(frame, len(self._frames)) for frame in frames)
        origin = Origin(op=op, frames=(*known, *self._chain(chain, None)))
        return self._origins.setdefault(origin, len(self._origins))

    def add(self, call: OpCall, record: Record) -> int:
        """The index of the origin of an op call, with its forward call if it ran in backward.

        A backward op inherits the module and the annotations of its forward call: no module runs
        in backward, and a reader wants the layer that the gradient belongs to.
        """
        forward_call = record.forward_of(call)
        # A loop repeats a call: it is looked up before its origin is built.
        key = (
            call.name,
            tuple(map(key_of, call.chain)),
            call.module,
            call.annotations,
            call.autograd_node,
            None if forward_call is None else forward_call.index,
        )
        known = self._calls.get(key)
        if known is not None:
            return known
        forward = None
        module, annotations = call.module, call.annotations
        if forward_call is not None and forward_call is not call:
            forward = self.add(forward_call, record)
            module = module or forward_call.module
            annotations = annotations or forward_call.annotations
        index = self._calls[key] = self.add_site(
            op=call.name,
            chain=call.chain,
            module=module,
            annotations=annotations,
            autograd_node=call.autograd_node,
            forward=forward,
        )
        return index

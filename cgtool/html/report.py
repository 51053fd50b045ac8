"""One capture, or two to compare, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

import cgtool
from cgtool.html.content import pack
from cgtool.html.difference import pack_difference
from cgtool.html.packing import Packer
from cgtool.html.page import page
from cgtool.model.capture import Capture


def html(captures: Sequence[tuple[str, Capture]]) -> bytes:
    """The page of one capture, or of two and what changed from the first to the second; with their
    names: files, as the user gave them.

    Raises CgtoolError (exit 2) for two that cannot be compared.
    """
    packer = Packer()
    trees = [
        pack(capture, name, f"{number}/", packer) for number, (name, capture) in enumerate(captures)
    ]
    difference = None
    if len(captures) == 2:
        (name_a, a), (name_b, b) = captures
        difference = pack_difference(a, b, (name_a, name_b), packer)
    return page(
        packer.block({"cgtool": cgtool.__version__, "captures": trees, "difference": difference})
    )

"""One capture, or two to compare, as one HTML page: a file with its style, its scripts and its data
inside.

Its Content-Security-Policy names the hash of each script and of the style. No other script can run,
nothing can be loaded, and text can only be added as text (``require-trusted-types-for``).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import resources
from pathlib import Path

from cgtool.analysis.graph.select import FIELDS
from cgtool.html.content import pack
from cgtool.html.difference import pack_difference
from cgtool.html.packing import Packer
from cgtool.model.capture import Capture
from cgtool.model.failure import usage


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
    return page(packer.block({"captures": trees, "difference": difference, "fields": list(FIELDS)}))


def check_page(output: Path, captures: Iterable[Capture]) -> None:
    """Raises CgtoolError (exit 2) for a page in the place of a source file that it shows."""
    for file in {frame.file for capture in captures for frame in capture.frames}:
        # The page may be new, and names in a capture impossible ones.
        with suppress(OSError, ValueError):
            if output.samefile(file):
                raise usage(
                    f"{output} is a source file of the capture: the page would overwrite it",
                    fix="name another file",
                )


SCRIPTS = (
    "data.js", "dom.js", "image.js", "state.js", "capture.js", "plot.js", "table.js", "details.js",
    "layout.js", "lanes.js", "memory.js", "run.js", "overview.js", "answer.js", "graph.js",
    "tables.js", "source.js", "difference.js", "main.js",
)  # fmt: skip
"""In the order in which they run: they share one scope."""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>cgtool report</title>
<style>{style}</style>
</head>
<body>
<noscript>This report is drawn by the scripts in this file: allow them to run.</noscript>
<script type="application/octet-stream" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def page(block: str) -> bytes:
    """The file. ``block`` is of ``Packer.block``."""
    style = _text("style.css")
    scripts = [_text(name) for name in SCRIPTS]
    allowed = " ".join(map(_hash, scripts))
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    elements = "\n".join(f"<script>{script}</script>" for script in scripts)
    return _PAGE.format(policy=policy, style=style, data=block, scripts=elements).encode()


def _text(name: str) -> str:
    return (resources.files("cgtool.html") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

"""Captures that were changed at random, by a bug or by somebody who means harm."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from cgtool.model.capture_file import write
from tests.builders import hostile, nested, serving, small, timed, unusual

RUN = "window.ran = (window.ran ?? 0) + 1"
TEXTS = (
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f'"><svg onload="{RUN}">',
    f"javascript:{RUN}",
    f"${{{RUN}}}",
    f"'-({RUN})-'",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    "<meta http-equiv=refresh content='0;url=https://example.com/'>",
    "<base href=https://example.com/><link rel=stylesheet href=a.css>",
    "<iframe srcdoc='<script>parent.ran = 1</script>'></iframe>",
    "<!--", "]]>", "&lt;script&gt;", "&#x3c;script>", "</title></style></noscript>",
    "__proto__", "constructor", "toString", "hasOwnProperty",
    "\u202e\u2066\u200b\ufeff", "\x00\x1b[2J\x7f\r\n", "\u2028\u2029", "\ud800",
    "", " ", ".", "..", "layers.0.", "/etc/passwd", "file:///etc/passwd", "a" * 9000, "." * 9000,
)  # fmt: skip
NUMBERS = (0, -1, 1, 2, 255, 1 << 31, (1 << 53) + 1, 1 << 62, 1 << 64, 0.5, -1e308, 1e308)
_FOLDER = Path(__file__).parents[2]
_FILES = (
    "samples/captures/mlp.cgt", "samples/captures/gan.cgt",
    "samples/captures/profile-two_streams.cgt", "samples/captures/profile-train_step.cgt",
    "tests/gold/traces/engine.cgt", "tests/gold/traces/timm_infer.cgt",
)  # fmt: skip


@cache
def originals(folder: Path) -> list[bytes]:
    """Files of every kind: profiled or not, of a program, with all types of nodes."""
    file = folder / "original.cgt"
    files = []
    for capture in (timed(small()), unusual(), nested(), serving(), hostile()):
        write(file, capture)
        files.append(file.read_bytes())
    return [*files, *((_FOLDER / name).read_bytes() for name in _FILES)]


def mutated(number: int, folder: Path) -> bytes:
    """The changed file of a number, always the same."""
    draw = Random(number)
    file = draw.choice(originals(folder))
    if draw.random() < 0.05:
        return _changed_bytes(draw, file)
    with zipfile.ZipFile(io.BytesIO(file)) as parts:
        texts = {name: parts.read(name) for name in parts.namelist()}
    changes = draw.choice((1, 1, 1, 2, 5, 40))
    for name in draw.sample(list(texts), min(changes, 3, len(texts))):
        if name.endswith(".json") and draw.random() < 0.95:
            tree = json.loads(texts[name])
            for _ in range(changes):
                _change(draw, tree)
            # A lone surrogate stays an escape, as in the files of users.
            texts[name] = json.dumps(tree).encode()
        else:
            texts[name] = _changed_bytes(draw, texts[name])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as parts:
        for name, data in texts.items():
            parts.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return packed.getvalue()


def _changed_bytes(draw: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 2, 16))):
        at = draw.randrange(len(changed) + 1)
        text = draw.choice((draw.randbytes(3), draw.choice(TEXTS).encode("utf-8", "replace")))
        changed[at : at + draw.choice((0, 1, len(text), 200))] = text
    return bytes(changed)


def _change(draw: Random, tree: Any) -> None:
    """Another value at a random place: mostly another text, which a file may have anywhere."""
    places = list(_places(tree))
    texts = [(inside, key) for inside, key in places if isinstance(inside[key], str)]
    wanted = texts if texts and draw.random() < 0.9 else places
    if not wanted:
        return
    inside, key = draw.choice(wanted)
    value = inside[key]
    if isinstance(value, str):
        inside[key] = draw.choice((draw.choice(TEXTS), value + draw.choice(TEXTS)))
    elif isinstance(value, list) and value and draw.random() < 0.9:
        inside[key] = draw.choice((value[:-1], value[::-1], value + value[:1], value * 3))
    elif isinstance(value, int | float):
        inside[key] = draw.choice(NUMBERS)
    else:
        inside[key] = draw.choice((None, [], {}, draw.choice(TEXTS), draw.choice(NUMBERS)))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])

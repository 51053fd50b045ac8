"""A new node attribute is one field: CONTRIBUTING.md says so.

A copy of the package gets two new fields, each one line; everything that shows nodes then shows
them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

FIELDS = {
    "KernelLaunch": """\
    cluster: Annotated[Dim3 | None, IN_BOX, COMPARED] = None
    \"\"\"Blocks of a cluster.\"\"\"
""",
    "Node": """\
    spill_bytes: Bytes | None = None
    \"\"\"What was spilled.\"\"\"
""",
}

USE = """
import json
from pathlib import Path
from msgspec import structs
from cgtool.analysis.diff.compare import compare
from cgtool.analysis.graph.view import whole
from cgtool.model.capture import KernelLaunch, Node
from cgtool.model.capture_file import read, write
from cgtool.model.failure import CgtoolError
from cgtool.render import dot, perfetto
from cgtool.render.json import encode_graphs
from tests import capture_format
from tests.builders import small, timed

def with_first(capture, spill, cluster):
    graph = capture.graphs[0]
    launch = structs.replace(graph.nodes[0].kernel, cluster=cluster)
    node = structs.replace(graph.nodes[0], kernel=launch, spill_bytes=spill)
    graph = structs.replace(graph, nodes=(node, *graph.nodes[1:]), raw_dot=None)
    return structs.replace(capture, graphs=(graph, *capture.graphs[1:]))

capture = with_first(timed(small()), 4096, (2, 1, 1))
write(Path("a.cgt"), capture)
assert read(Path("a.cgt")) == capture
write(Path("b.cgt"), with_first(capture, -1, None))
try:
    refusal = str(read(Path("b.cgt")))
except CgtoolError as error:
    refusal = error.failure.message
views = [whole(0, capture.graphs[0])]
difference = compare(capture, with_first(timed(small()), 8192, (4, 1, 1)))
events = json.loads(perfetto.render(capture))["traceEvents"]
print(json.dumps({
    "refusal": refusal,
    "json": json.loads(encode_graphs(capture, views))["graphs"][0]["nodes"],
    "dot": dot.render(capture, views),
    "args": [event["args"] for event in events if event.get("cat") == "kernel"],
    "diff": [
        [row.change, *((one.name, one.a, one.b) for one in row.attributes)]
        for row in difference.changes
    ],
    "sentence": difference.summary,
    "page": capture_format.render([KernelLaunch, Node]),
}))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the copy of the package shows of a node that has both."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("cgtool", "tests"):
        shutil.copytree(
            ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "gold")
        )
    path = copy / "cgtool" / "model" / "capture.py"
    text = path.read_text()
    for struct, field in FIELDS.items():
        end = text.index("\n\n\nclass ", text.index(f"class {struct}(")) + 1
        text = text[:end] + field + text[end:]
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_it_is_in_the_json(shown) -> None:
    first, second, *_ = shown["json"]
    assert first["cluster"] == [2, 1, 1]
    assert first["spill_bytes"] == 4096
    assert "cluster" not in second and "spill_bytes" not in second


def test_it_is_in_the_box_and_in_the_tooltip(shown) -> None:
    box = next(line for line in shown["dot"].splitlines() if "g0_0 [label" in line)
    label, _, tooltip = box.partition("tooltip=")
    assert "grid 16, block 128, cluster 2" in label
    assert "cluster 2" in tooltip and "spill 4.0 KiB" in tooltip
    assert "spill" not in label


def test_it_is_among_the_arguments_of_the_trace(shown) -> None:
    first, second, *_ = shown["args"]
    assert (first["cluster"], first["spill bytes"]) == ([2, 1, 1], 4096)
    assert "cluster" not in second


def test_a_changed_attribute_is_a_difference_where_its_type_says_so(shown) -> None:
    assert shown["diff"] == [["changed", ["cluster", "2", "4"]]]
    assert "launch" in shown["sentence"] and "cluster" not in shown["sentence"]


def test_it_is_checked_when_a_file_is_read(shown) -> None:
    assert "Expected `int` >= 0 - at `$.nodes[0].spill_bytes`" in shown["refusal"]


def test_it_is_in_the_page_of_the_format(shown) -> None:
    assert (
        "| `cluster` | `tuple[int, int, int] or None` | 0 to 4294967295 | Blocks of"
        in shown["page"]
    )
    assert "| `spill_bytes` | `int or None` | bytes | What was spilled. |" in shown["page"]

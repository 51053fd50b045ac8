"""The cells of a notebook: IPython gives each the name of a temporary file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgtool.analysis.ledger_report import ledger_report
from cgtool.model import capture_file
from cgtool.model.notebook import is_cell, named_by_cell
from cgtool.model.sources import Sources
from cgtool.render.text import shown_file

CELLS = (
    "import cgtool, torch",
    "def step(x):\n    return x + 1",
    """
with cgtool.recording("run.cgt", device="simulated"):
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step(x)
    graph.replay()
""",
)


def test_lines_of_cells_are_named_by_the_number_of_the_cell(tmp_path: Path) -> None:
    """Where nbclient and ipykernel are installed."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    capture = capture_file.read(tmp_path / "run.cgt")
    (row,) = ledger_report(capture).lines
    assert (row.line, row.replayed_at) == ("cell In[3]:4", "cell In[3]:6")
    (frame,) = (frame for frame in capture.frames if frame.function == "step")
    # Only the process of the notebook had the source.
    assert Sources(capture.sources).line(frame) == "    return x + 1"
    assert shown_file(frame.file) == "cell In[2]"


def test_a_cell_without_a_number_has_a_name() -> None:
    assert named_by_cell("/tmp/ipykernel_7/629.py") == "/tmp/ipykernel_7/notebook cell 629"
    assert is_cell("/tmp/ipykernel_7/notebook cell 629")
    for other in ("/tmp/ipykernel_7/model.py", "/home/me/629.py", "/tmp/ipykernel_7/../629.py"):
        assert named_by_cell(other) == other
        assert not is_cell(other)

"""``cgtool report``: what it writes, where, and what it refuses."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from msgspec import structs

from cgtool import CgtoolError, load
from cgtool.model.capture_file import write
from tests.builders import capture, small

SAMPLES = Path(__file__).parents[2] / "samples" / "captures"
MLP = SAMPLES / "mlp.cgt"


def test_the_page_is_written_next_to_nothing_else(cgtool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, error = cgtool("report", MLP)
    assert (code, out, error) == (0, "", "saved report.html\n")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_another_name_and_nothing_said(cgtool, tmp_path):
    code, out, error = cgtool("report", MLP, "-o", tmp_path / "a.html", "--quiet")
    assert (code, out, error) == (0, "", "")
    assert (tmp_path / "a.html").exists()


def test_it_is_opened_when_asked_for(cgtool, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: not opened.append(uri))
    page = tmp_path / "a b.html"
    assert cgtool("report", MLP, "-o", page, "--open") == (0, "", f"saved {page}\n")
    assert opened == [page.as_uri()]


def test_without_a_browser_this_is_said(cgtool, tmp_path, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    page = tmp_path / "a.html"
    code, _, error = cgtool("report", MLP, "-o", page, "--open", "-q")
    assert (code, error) == (0, f"no browser was found to open {page}\n")


def test_an_entry_is_captured_first(cgtool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "import torch\ndef build(device):\n"
        "    return torch.nn.Linear(4, 4).to(device), (torch.ones(2, 4, device=device),)\n"
    )
    code, _, error = cgtool("report", "model.py:build", "--device", "simulated", "-q")
    assert (code, error) == (0, "")
    assert (tmp_path / "report.html").exists()


def test_the_same_capture_makes_the_same_page(cgtool, tmp_path):
    for name in ("a.html", "b.html"):
        cgtool("report", SAMPLES / "profile-train_step.cgt", "-o", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing.cgt"], "missing.cgt: no such file"),
        ([MLP, "-o", MLP], "would overwrite"),
        ([MLP, "-o", "no/folder/a.html"], "there is no folder no/folder"),
        ([MLP, "--device", "simulated"], "not to a saved capture"),
        ([MLP, "simulated.cgt"], "they cannot be compared"),
        ([__file__, "--device", "simulated"], "an ENTRY also names a function"),
        ([__file__, __file__, "--device", "simulated"], "an ENTRY also names a function"),
    ],
)
def test_what_cannot_be_done_is_said(cgtool, tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "simulated.cgt", capture(small().graphs[1:], simulated=True, **rest(small())))
    code, out, error = cgtool("report", *arguments)
    assert (code, out) == (2, "")
    assert problem in " ".join(error.split())
    assert not (tmp_path / "report.html").exists()


def rest(whole):
    """Everything that nodes refer to."""
    names = ("frames", "origins", "functions", "streams")
    memory = structs.replace(whole.memory, allocations=())
    return {**{name: getattr(whole, name) for name in names}, "memory": memory}


def test_a_page_does_not_replace_the_source_that_it_shows(cgtool, tmp_path):
    source = tmp_path / "model.py"
    source.write_text("x = 1\n")
    whole = small()
    places = [str(source), "a\0b.py", "", "n" * 9999]
    frames = tuple(
        structs.replace(frame, file=file)
        for frame, file in zip(whole.frames, [*places, *places], strict=False)
    )
    graphs = tuple(structs.replace(graph, raw_dot=None) for graph in whole.graphs)
    write(tmp_path / "a.cgt", structs.replace(whole, frames=frames, graphs=graphs))
    code, _, error = cgtool("report", tmp_path / "a.cgt", "-o", source)
    assert (code, source.read_text()) == (2, "x = 1\n")
    assert f"{source} is a source file of the capture" in error
    with pytest.raises(CgtoolError, match="is a source file"):
        load(tmp_path / "a.cgt").report(source)
    assert cgtool("report", tmp_path / "a.cgt", "-o", tmp_path / "a.html")[0] == 0


def test_an_empty_capture_has_a_page(cgtool, tmp_path):
    write(tmp_path / "empty.cgt", capture([]))
    code, _, error = cgtool("report", tmp_path / "empty.cgt", "-o", tmp_path / "a.html", "-q")
    assert (code, error) == (0, "")

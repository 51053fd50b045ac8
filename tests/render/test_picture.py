"""Layout by the pip-installed program, with a limit and clear words when it fails."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from cgtool.analysis.graph.view import whole
from cgtool.model.failure import CgtoolError
from cgtool.render import dot
from tests.builders import plain, small
from tests.html.opened import opened_browser
from tests.recorded import recorded


def small_dot() -> str:
    capture = small()
    return dot.render(capture, [whole(index, graph) for index, graph in enumerate(capture.graphs)])


def test_svg_and_png_without_a_system_package() -> None:
    assert dot.lay_out(small_dot(), "svg").lstrip().startswith(b"<?xml")
    assert dot.lay_out(small_dot(), "png").startswith(b"\x89PNG\r\n")


@pytest.mark.browser
def test_text_stays_in_its_box_with_any_font(tmp_path: Path) -> None:
    capture = recorded("two_streams")
    text = dot.render(capture, [whole(at, graph) for at, graph in enumerate(capture.graphs)])
    file = tmp_path / "picture.svg"
    # The widest font there is stands for one that has other letters than Helvetica.
    file.write_bytes(dot.lay_out(text, "svg").replace(b"Helvetica,sans-Serif", b"monospace"))
    with opened_browser() as browser:
        page = browser.new_page()
        page.goto(file.as_uri())
        texts, outside = page.evaluate("""(() => {
          const texts = [...document.querySelectorAll(".node text")];
          const isOutside = (text) => {
            const inner = text.getBBox();
            const outer = text.closest(".node").querySelector("path, polygon").getBBox();
            return inner.x < outer.x || inner.x + inner.width > outer.x + outer.width;
          };
          const outside = texts.filter(isOutside).map(({textContent}) => textContent);
          return [texts.length, outside];
        })()""")
    assert texts > 30
    assert outside == []


def test_the_system_program_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho from-the-system\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert dot.lay_out("digraph {}", "svg") == b"from-the-system\n"


def test_no_program_at_all_says_what_brings_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shutil.which("dot") is None
    with pytest.raises(CgtoolError, match="no Graphviz") as caught:
        dot.lay_out("digraph {}", "svg")
    assert caught.value.failure.exit_code == 3
    assert "pip install graphviz-pure" in (caught.value.failure.fix or "")


def test_bad_dot_is_one_sentence() -> None:
    with pytest.raises(CgtoolError, match=r"could not lay the graph out: .*syntax") as caught:
        dot.lay_out("digraph { a -> ", "svg")
    assert caught.value.failure.exit_code == 2
    assert "\n" not in caught.value.failure.message


def test_a_layout_past_its_time_is_ended() -> None:
    capture = plain(400, [(a, b) for a in range(400) for b in range(a + 1, 400, 7)])
    text = dot.render(capture, [whole(0, capture.graphs[0])])
    with pytest.raises(CgtoolError, match="took more than") as caught:
        dot.lay_out(text, "svg", seconds=0.05)
    assert "--depth 1" in (caught.value.failure.fix or "")

"""Pages of captures that were changed at random hold no markup of theirs, and run none of it.

``CGTOOL_MUTATIONS=10000 python -m pytest tests/html/test_mutations.py`` tries that many files and
opens 200 of their pages, in four to eight minutes. Texts in every field are then of 10 MB, not 1.
"""

from __future__ import annotations

import os
import re

import pytest

from cgtool.html.report import html, page
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import CgtoolError
from tests.builders import serving, timed, unusual
from tests.html.mutations import RUN, TEXTS, mutated
from tests.html.opened import Page, evil, opened_browser

FILES = int(os.environ.get("CGTOOL_MUTATIONS", "150"))
OPENED = FILES // 50 if FILES >= 1000 else 6
LARGEST = 1_000_000
"""Bytes of a page whose capture has few nodes, however long its names."""

BEFORE = """
  window.refused = [];
  addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
"""
EVERY_VIEW = """async () => {
  for (const name of page.names) {
    state.show(name);
    await new Promise(requestAnimationFrame);
    const {count} = state.capture;
    for (const node of [0, count >> 1, count - 1]) if (count) state.selectNode(node);
    state.select([...Array(count).keys()], "all");
    state.clear();
  }
  document.querySelectorAll("details").forEach((each) => (each.open = true));
}"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The pages of the changed files that are read, by number; every other is refused."""
    folder = tmp_path_factory.mktemp("mutated")
    file = folder / "mutated.cgt"
    pages = {}
    empty = page("").split(b' id="data">')
    for number in range(FILES):
        file.write_bytes(mutated(number, folder))
        try:
            capture = read(file)
        except CgtoolError:
            continue
        text = html([("mutated.cgt", capture)])
        # All but letters, digits, +, / and = is as in the page of nothing.
        before, _, after = text.partition(b' id="data">')
        data, _, after = after.partition(b"<")
        assert (before, b"<" + after) == (empty[0], empty[1]), number
        assert re.fullmatch(rb"[A-Za-z0-9+/=]+", data), number
        pages[number] = data
    return pages


def test_pages_differ_in_base64_alone(loaded):
    assert len(loaded) > FILES // 4


@pytest.fixture(scope="module")
def reader():
    with opened_browser() as browser:
        reader = Page(browser)
        reader.page.add_init_script(BEFORE)
        yield reader


def open_all_views(reader, file, content):
    file.write_bytes(content)
    reader.open(file)
    reader(EVERY_VIEW)
    for text in TEXTS[:3]:
        reader.page.fill("input[type=search]", text)
    assert reader.errors == []
    assert reader("[window.ran ?? 0, ...refused]") == [0]
    assert reader("document.querySelectorAll('img, iframe, object, base, link, a').length") == 0
    assert reader("document.scripts.length") == page("").count(b"<script")


@pytest.mark.browser
def test_pages_run_nothing(loaded, reader, tmp_path):
    numbers = list(loaded)[:: max(1, len(loaded) // OPENED)]
    file = tmp_path / "mutated.html"
    for number in numbers:
        try:
            open_all_views(reader, file, page(loaded[number].decode()))
        except BaseException as problem:
            problem.add_note(f"the file of number {number}")
            raise


@pytest.mark.browser
@pytest.mark.parametrize("make", [lambda: timed(unusual()), serving], ids=["unusual", "program"])
def test_long_texts_in_every_field_are_cut(reader, tmp_path, make):
    megabytes = 10 if FILES >= 1000 else 1
    text = f"</script><script>{RUN}</script>" + megabytes * 1_000_000 * "x"
    capture = evil(make(), text)
    assert isinstance(capture, Capture)
    content = html([("x" * 10_000, capture)])
    assert len(content) < LARGEST
    open_all_views(reader, tmp_path / "long.html", content)
    reader.page.keyboard.press("Escape")
    reader("state.show('answer')")
    notes = reader.page.inner_text("[data-view=answer]")
    assert "texts of more than 4,000 characters: shortened in the middle" in notes

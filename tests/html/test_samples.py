"""The reports of recorded samples that README links, and their pictures."""

from __future__ import annotations

import os

import pytest

from cgtool.html.report import html
from cgtool.model.capture_file import read
from tests.html.opened import Page, opened_browser
from tests.recorded import ROOT

REPORTS = ROOT / "docs" / "reports"
IMAGES = ROOT / "docs" / "images"
SAMPLES = {
    "transformer": "samples/captures/profile-transformer.cgt",
    "two_streams": "samples/captures/profile-two_streams.cgt",
    "engine": "tests/gold/html/engine.cgt",
}
PICTURES = {
    "report": ("graph", "page.opened.get('graph').view.plot.fit(); state.selectNode(25)"),
    "report-answer": ("answer", "state.clear()"),
    "report-unneeded": ("graph", "page.opened.get('graph').view.plot.fit(); state.showUnneeded()"),
    "report-memory": ("memory", "state.clear()"),
}
"""Of the first sample: a view, and what is shown of it."""


def report(sample: str) -> bytes:
    """As `cgtool report` writes it."""
    return html([(SAMPLES[sample].rpartition("/")[2], read(ROOT / SAMPLES[sample]))])


@pytest.mark.browser
def test_the_reports_of_the_samples_open_and_say_what_they_would_today(tmp_path):
    today = tmp_path / "today.html"
    with opened_browser() as browser:
        page = Page(browser)
        for sample in SAMPLES:
            file = REPORTS / f"{sample}.html"
            today.write_bytes(report(sample))
            if os.environ.get("UPDATE_GOLD"):
                REPORTS.mkdir(exist_ok=True)
                file.write_bytes(today.read_bytes())
            page.open(today)
            answer, views = page.page.inner_text(".lead"), page.views
            page.open(file)
            assert page.page.inner_text(".lead") == answer, "UPDATE_GOLD=1 writes them"
            assert page.views == views
            for view in views:
                page.show(view)
            if sample == "transformer" and os.environ.get("UPDATE_GOLD"):
                take_pictures(page)
        assert page.errors == []


def take_pictures(page: Page) -> None:
    page.page.set_viewport_size({"width": 1280, "height": 720})
    for name, (view, script) in PICTURES.items():
        page.show(view)
        page(script)
        page.page.wait_for_timeout(200)
        page.page.screenshot(path=IMAGES / f"{name}.png")


def test_readme_links_the_reports_and_pictures():
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "cli.md").read_text()
    for sample in SAMPLES:
        assert f"(docs/reports/{sample}.html)" in text
    for name in PICTURES:
        assert f"images/{name}.png" in text

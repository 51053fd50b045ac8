"""A report in a browser, and what goes wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cgtool.model.capture import Capture
from tests.browser import find_browser


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container has no user namespaces for the browser's own sandbox.
        browser = playwright.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


class Page:
    """One open report, and what went wrong in it."""

    def __init__(self, browser):
        self.errors = []
        self.page = browser.new_page(viewport={"width": 1280, "height": 800})
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.page.on("request", lambda request: self.requested(request.url))

    def open(self, file: Path):
        self.url = file.as_uri()
        self.page.goto(self.url)
        self.page.wait_for_selector("html[data-ready]")

    def requested(self, url):
        # A blob is made by the page itself.
        if url != self.url and not url.startswith("blob:"):
            self.errors.append(f"asked for {url}")

    def __call__(self, script, argument=None):
        return self.page.evaluate(script, argument)

    @property
    def views(self):
        return self("page.names")

    def show(self, view):
        self("async (view) => (state.show(view), await new Promise(requestAnimationFrame))", view)


def evil(capture: Capture, text: str) -> Capture:
    """The capture with this for every text."""

    def changed(value):
        if isinstance(value, str):
            return text
        if isinstance(value, dict):
            return {key: changed(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [changed(inner) for inner in value]
        return value

    return msgspec.convert(changed(msgspec.to_builtins(capture)), Capture)

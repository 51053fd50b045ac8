"""The page's colors by arithmetic: text can be read, and the color-blind can tell ops apart."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

import cgtool.html

Color = tuple[float, float, float]
"""Linear RGB, 0 to 1."""

_SIGHTS = {
    "common": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""What a color becomes, by rows. Source: Machado, Oliveira and Fernandes 2009, severity 1."""
_APART = 10.0
"""Distance in CIELAB: 2.3 can just be seen where two colors touch."""


def _schemes() -> dict[str, dict[str, Color]]:
    """The colors of ``style.css``, light and dark."""
    text = (Path(cgtool.html.__file__).parent / "assets" / "style.css").read_text()
    light, dark = re.findall(r'^:root(?:\[data-theme="dark"\])? \{(.*?)^\}', text, re.S | re.M)
    found = {}
    named: dict[str, Color] = {}
    for name, block in (("light", light), ("dark", dark)):
        named = named | {
            key: _linear(value) for key, value in re.findall(r"--([\w-]+): #(\w{6});", block)
        }
        found[name] = named
    return found


def _linear(text: str) -> Color:
    def level(start: int) -> float:
        share = int(text[start : start + 2], 16) / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return level(0), level(2), level(4)


def _seen(color: Color, sight: str) -> Color:
    red, green, blue = (
        min(max(sum(map(math.prod, zip(row, color, strict=True))), 0), 1) for row in _SIGHTS[sight]
    )
    return red, green, blue


def _luminance(color: Color) -> float:
    red, green, blue = color
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _lab(color: Color) -> tuple[float, float, float]:
    def root(share: float) -> float:
        return math.cbrt(share) if share > 0.008856 else 7.787 * share + 16 / 116

    red, green, blue = color
    x = root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047)
    y = root(_luminance(color))
    z = root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    colors = _schemes()[scheme]
    on = {"page", "panel", "band", "band-2"}
    pairs = [*itertools.product(("ink", "muted"), on), ("faint", "page"), ("faint", "panel")]
    pairs += [(name, "page") for name in ("accent", "bad", "warn", "good")]
    for text, ground in pairs:
        low, high = sorted((_luminance(colors[text]), _luminance(colors[ground])))
        # WCAG 2.2, 1.4.3
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


@pytest.mark.parametrize("sight", _SIGHTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ops_can_be_told_apart(scheme: str, sight: str) -> None:
    colors = {
        name: _lab(_seen(color, sight))
        for name, color in _schemes()[scheme].items()
        if name.startswith("series-")
    }
    assert len(colors) == 9
    for one, other in itertools.combinations(colors, 2):
        assert math.dist(colors[one], colors[other]) >= _APART, (one, other)

"""Small pictures of views, compared with those that were looked at.

Fonts differ from machine to machine, so a picture is made so small that letters are a shade of
gray, and a few of its pixels may differ. Blank views, other colors and other places are found.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from pathlib import Path

GOLD = Path(__file__).parents[1] / "gold" / "html"
SIZE = (128, 80)
NEAR = 40
"""Levels, of 255, that a pixel may differ by."""
ELSEWHERE = 0.1
"""Share of the pixels that may differ by more."""

_SMALL = """async function small(bytes, [width, height]) {
  const blob = await (await fetch("data:image/png;base64," + bytes)).blob();
  const how = {resizeWidth: width, resizeHeight: height, resizeQuality: "high"};
  const canvas = Object.assign(document.createElement("canvas"), {width, height});
  const context = canvas.getContext("2d");
  context.drawImage(await createImageBitmap(blob, how), 0, 0);
  return {canvas, data: context.getImageData(0, 0, width, height).data};
}"""
_PNG = f"""async ([bytes, size]) => {{
  {_SMALL}
  return (await small(bytes, size)).canvas.toDataURL().split(",")[1];
}}"""
_DIFFERENCE = f"""async ([one, other, size, near]) => {{
  {_SMALL}
  const [a, b] = [(await small(one, size)).data, (await small(other, size)).data];
  let differ = 0;
  for (let at = 0; at < a.length; at += 4) {{
    differ += [0, 1, 2].some((level) => Math.abs(a[at + level] - b[at + level]) > near);
  }}
  return (4 * differ) / a.length;
}}"""


def check_picture(blank, name: str, screenshot: bytes) -> None:
    """Compare a screenshot with ``tests/gold/html/NAME.png``; ``UPDATE_GOLD`` writes it. A blank
    page of a browser does the work."""
    if os.environ.get("UPDATE_GOLD"):
        GOLD.mkdir(exist_ok=True)
        picture = blank.evaluate(_PNG, [b64encode(screenshot).decode(), SIZE])
        (GOLD / f"{name}.png").write_bytes(b64decode(picture))
    share = difference(blank, name, screenshot)
    assert share <= ELSEWHERE, f"{share:.1%} of {name}.png differ: UPDATE_GOLD=1, and look at it"


def difference(blank, name: str, screenshot: bytes) -> float:
    """The share of the pixels that differ."""
    pictures = (screenshot, (GOLD / f"{name}.png").read_bytes())
    texts = [b64encode(picture).decode() for picture in pictures]
    return blank.evaluate(_DIFFERENCE, [*texts, SIZE, NEAR])

"""Colours of pictures: soft fills under dark text, told apart also in greyscale by their words."""

from __future__ import annotations

INK = "#1f2937"
QUIET = "#4b5563"
EDGE = "#7d8896"
PAPER = "#ffffff"

PHASES = {"forward": "#f5f8fc", "backward": "#fbf7f1", "step": "#f6f8f5"}
PHASE_LINES = {"forward": "#b9c8dc", "backward": "#dccdb5", "step": "#c3d0bd"}

TYPES = {
    "kernel": ("#dce9f9", "#8fb3dd"),
    "op": ("#dce9f9", "#8fb3dd"),
    "memcpy": ("#fde8cf", "#e0b177"),
    "memset": ("#e9e5f5", "#ada1d3"),
    "host": ("#f9dcdc", "#d99a9a"),
    "child": ("#dcf0e3", "#8fc3a3"),
    "conditional": ("#d6efee", "#86c1be"),
    "alloc": ("#eef3d3", "#b7c383"),
    "free": ("#eef3d3", "#b7c383"),
}
"""Fill and border of each node type; the rest share ``OTHER``."""
OTHER = ("#eceff2", "#b3bcc6")
MIXED = ("#f1f4f8", "#9fb0c4")
"""A group with nodes of several types."""

SOFT = (
    ("#dce9f9", "#8fb3dd"),
    ("#fde8cf", "#e0b177"),
    ("#dcf0e3", "#8fc3a3"),
    ("#e9e5f5", "#ada1d3"),
    ("#f9dcdc", "#d99a9a"),
    ("#d6efee", "#86c1be"),
    ("#f6f0c8", "#cdbf73"),
    ("#f3dfee", "#cf9fc2"),
    ("#e6e2d8", "#b5ab93"),
)
"""For modules, in order of their first node."""

HEAT = (
    ("#f7f5f2", "#cfc9c0"),
    ("#fdf1df", "#e5cba5"),
    ("#fde4c6", "#e2b47c"),
    ("#fbd2a8", "#da9c60"),
    ("#f8bd94", "#d08357"),
    ("#f4a687", "#c06648"),
)
"""From little to most of the time."""

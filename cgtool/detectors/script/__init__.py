"""Watching a script that captures and replays CUDA graphs itself, on a GPU or a simulated one.

``hooks`` and ``modes`` see every capture, replay, op and wait; ``run`` tells the checks, each of
which is one family of hazards (``families``).
"""

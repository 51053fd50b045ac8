"""Watching a script that captures and replays CUDA graphs itself, on a GPU or a simulated one.

``hooks`` sees every capture, replay, op and wait; each other file holds one family of hazards.
"""

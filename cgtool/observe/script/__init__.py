"""Observers of a script that captures and replays CUDA graphs itself, on either device.

Observers (``graphs``, ``calls``) patch PyTorch while the script runs.
They keep the state of the script (``script``, ``state``) and publish facts (``events``). They know
no finding: ``cgtool.detectors.script`` subscribes. The docstring of each says what it costs and
whether it disturbs the program.
"""

"""Observers of a script that captures and replays CUDA graphs itself, on either device.

The script (``script``, ``state``) subscribes to the follower of graphs (``observe.graphs``), and
observers (``calls``, ``graphed_callables``, ``streams``) patch PyTorch while it runs. They publish
facts (``events``) and know no finding: ``cgtool.detectors.script`` subscribes. The docstring of
each says what it costs and whether it disturbs the program.
"""

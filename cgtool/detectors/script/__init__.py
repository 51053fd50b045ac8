"""Mistakes of a script with the CUDA graphs that it captures and replays itself.

Each class is a family of findings: it subscribes to facts of ``cgtool.observe.script`` and reports.
``run`` runs the script under all of them.
"""

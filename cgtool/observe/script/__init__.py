"""Observers of a script that captures and replays CUDA graphs itself."""

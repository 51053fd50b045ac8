"""The capture file: plain data, no torch, no CUDA, no terminal."""

"""cgtool: see inside PyTorch CUDA graphs."""

__version__ = "0.1.0"

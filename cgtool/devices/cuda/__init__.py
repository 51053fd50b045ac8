"""The only code that touches CUDA."""

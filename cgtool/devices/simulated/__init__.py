"""The simulated device: CUDA-graph semantics on CPU tensors, for machines with no GPU."""

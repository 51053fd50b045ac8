"""Imported once in the process that ``tests.forked_workers`` forks from."""

import torch
import torch.fx.experimental.symbolic_shapes

# No thread of PyTorch's own before a fork, and the machine's cores for several workers at once.
torch.set_num_threads(1)

"""Imported once in the process that ``tests.forked_workers`` forks from."""

import gc
import importlib

import torch
import torch.fx.experimental.symbolic_shapes

# No thread of PyTorch's own before a fork, and the machine's cores for several workers at once.
torch.set_num_threads(1)
for name in (
    "cgtool.cli.workers",
    "cgtool.devices.simulated.device",
    "cgtool.jobs.dispatch",
    "cgtool.jobs.verify.procedure",
):
    importlib.import_module(name)
# Every collection of a worker would walk through all of this anew, a quarter of a second each.
gc.collect()
gc.freeze()

"""Imported once in the process that ``tests.forked_workers`` forks from.

What a command or its worker does before it comes to the user's code is done here: each of some
thousand processes would do it again.
"""

import gc
import importlib
import os
import pkgutil

import msgspec
import torch

import cgtool
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.model.capture import Capture
from cgtool.model.finding import Report
from cgtool.model.jobs import Message, Request
from cgtool.torch_compat.shared_kernels import device_check

# No thread of PyTorch's own before a fork, and the machine's cores for several workers at once.
torch.set_num_threads(1)
# A forked process makes its pool of threads anew when it first needs one. Where two threads come to
# that at once, PyTorch fails with "Invalid thread pool!".
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
for module in pkgutil.walk_packages(cgtool.__path__, "cgtool."):
    if not module.name.startswith("cgtool.pytest_plugin"):
        importlib.import_module(module.name)
for name in (
    "numpy.random",
    "rich.markdown",
    "rich.syntax",
    "rich.table",
    "tests.forked_workers",
    "torch._dynamo",
    "torch._subclasses.schema_check_mode",
    "torch.cuda._graph_annotations",
    "torch.fx.experimental.symbolic_shapes",
    "torch.utils.flop_counter",
    "typer._adapters",
    "yaml",
):
    importlib.import_module(name)
# Registers kernels for a thousand ops on cgtool's dispatch keys, where they stay.
with SimulatedDevice("preloaded").active():
    pass
# What is read or built when it is first needed.
device_check("aten::add.Tensor")
for kind in (Capture, Message, Report, Request):
    msgspec.json.Decoder(kind)
# Every collection of a worker would walk through all of this again, a quarter of a second each.
gc.collect()
gc.freeze()

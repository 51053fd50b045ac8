"""Imported once in the process that the workers of a whole corpus are forked from: all that a job
imports sooner or later, out of reach of the garbage collector, which would walk through it anew in
each of them."""

import gc
import importlib

for name in (
    "tests.preloaded",
    "torch._dynamo",
    "cgtool.cli.attempts",
    "cgtool.devices.simulated.device",
    "cgtool.jobs.dispatch",
    "cgtool.jobs.verify.procedure",
):
    importlib.import_module(name)
gc.collect()
gc.freeze()

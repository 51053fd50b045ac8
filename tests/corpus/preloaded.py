"""Imported once in the process that the workers of a whole corpus are forked from: also what the
first optimizer of a process imports."""

import gc
import importlib

for name in ("tests.preloaded", "torch._dynamo"):
    importlib.import_module(name)
gc.collect()
gc.freeze()

"""A wrapper keeps one graph for each descriptor of a batch, and weak references to its outputs."""

import contextlib
import gc
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import nn


@dataclass(frozen=True)
class Descriptor:
    tokens: int
    uniform: bool = False


@dataclass
class Entry:
    descriptor: Descriptor
    graph: torch.cuda.CUDAGraph | None = None
    output: torch.Tensor | None = None
    addresses: list = field(default_factory=list)


class Wrapper:
    def __init__(self, runnable, pool):
        self.runnable, self.pool = runnable, pool
        self.entries = {}
        self.first = True

    def __call__(self, x, descriptor):
        entry = self.entries.setdefault(descriptor, Entry(descriptor))
        if entry.graph is None:
            self.runnable(x)
            torch.cuda.synchronize()
            entry.addresses = [x.data_ptr()]
            graph = torch.cuda.CUDAGraph()
            with contextlib.ExitStack() as stack:
                if not self.first:
                    stack.enter_context(patch("gc.collect", lambda: None))
                    stack.enter_context(patch("torch.cuda.empty_cache", lambda: None))
                with torch.cuda.graph(graph, pool=self.pool):
                    entry.output = self.runnable(x)
            entry.graph, self.first = graph, False
            graph.replay()
            return entry.output
        assert entry.addresses == [x.data_ptr()], "inputs moved"
        entry.graph.replay()
        return entry.output


model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).cuda().eval()
wrapped = Wrapper(model, torch.cuda.graph_pool_handle())
buffer = torch.zeros(8, 8, device="cuda")
gc.collect()
with torch.inference_mode():
    for tokens in (8, 4, 8, 2, 4):
        buffer[:tokens] = torch.randn(tokens, 8, device="cuda")
        hidden = wrapped(buffer[:tokens], Descriptor(tokens))
        print(tokens, hidden.float().norm().item())

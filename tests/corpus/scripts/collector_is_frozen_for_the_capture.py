"""Captures of several sizes with the collector frozen and a progress bar's text between them."""

import contextlib
import gc
import sys
import time

import torch
from torch import nn


@contextlib.contextmanager
def freeze_gc():
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.collect()


@contextlib.contextmanager
def graph_capture(stream):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield stream


model = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)).cuda().eval()
static = torch.zeros(4, 8, device="cuda")
graphs, outputs, pool = {}, {}, None
started = time.perf_counter()
with freeze_gc(), graph_capture(torch.cuda.Stream()) as stream, torch.inference_mode():
    for rows in (4, 2, 1):
        model(static[:rows])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            outputs[rows] = model(static[:rows])
        pool = pool or graph.pool()
        graphs[rows] = graph
        print(f"captured {rows} after {time.perf_counter() - started:.1f} s", file=sys.stderr)
torch.cuda.synchronize()
for rows in (1, 4, 2):
    static[:rows] = torch.randn(rows, 8, device="cuda")
    graphs[rows].replay()
    print(rows, outputs[rows].norm().item())

"""A profiling helper: hooks note shapes and allocated memory of each layer, also in a capture."""

import time
from collections import defaultdict

import torch
from torch import nn


class Ledger:
    def __init__(self, model):
        self.rows = defaultdict(list)
        self.handles = []
        for name, layer in model.named_modules():
            if not list(layer.children()):
                hook = self.hook(name, layer)
                self.handles.append(layer.register_forward_hook(hook))

    def hook(self, name, layer):
        size = sum(p.numel() for p in layer.parameters())

        def note(_layer, inputs, output):
            moment = time.perf_counter()
            memory = torch.cuda.memory_allocated()
            capturing = torch.cuda.is_current_stream_capturing()
            shape = tuple(output.shape)
            self.rows[name].append((moment, memory, size, shape, output.is_contiguous(), capturing))

        return note

    def table(self):
        for name, rows in self.rows.items():
            _moment, memory, size, shape, _contiguous, capturing = rows[-1]
            yield f"{name:4} {size:6} {shape} {memory >= 0} {capturing}"


model = nn.Sequential(
    nn.Conv1d(2, 8, 5, stride=2),
    nn.GELU(),
    nn.Conv1d(8, 8, 3),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
)
model.cuda().eval().requires_grad_(False)
ledger = Ledger(model)
signal = torch.randn(3, 2, 40, device="cuda")
model(signal)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    embedding = model(signal)
print("\n".join(ledger.table()))

started = time.perf_counter()
for _ in range(3):
    signal.copy_(torch.randn(3, 2, 40))
    graph.replay()
    print(embedding.norm().item())
print(f"{time.perf_counter() - started:.4f} s, {torch.cuda.max_memory_allocated() >= 0}")

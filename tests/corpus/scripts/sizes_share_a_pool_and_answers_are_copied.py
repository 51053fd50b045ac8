"""An engine captures its sizes into one pool, and copies each answer before the next launch."""

# No output is read after the replay of another graph of the pool.

import torch
from torch import nn


class Engine:
    def __init__(self, sizes):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).cuda().eval()
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs, self.inputs, self.outputs = {}, {}, {}
        for size in sorted(sizes, reverse=True):
            self.capture(size)

    @torch.inference_mode()
    def capture(self, size):
        self.inputs[size] = torch.zeros(size, 8, device="cuda")
        self.model(self.inputs[size])
        torch.cuda.synchronize()
        self.graphs[size] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graphs[size], pool=self.pool):
            self.outputs[size] = self.model(self.inputs[size])

    @torch.inference_mode()
    def launch(self, rows):
        size = min(s for s in self.graphs if s >= len(rows))
        self.inputs[size].zero_()
        self.inputs[size][: len(rows)].copy_(rows)
        self.graphs[size].replay()
        return self.outputs[size][: len(rows)].clone()


engine = Engine([1, 2, 4])
short = engine.launch(torch.ones(2, 8))
long = engine.launch(torch.full((3, 8), 2.0))
single = engine.launch(torch.full((1, 8), 3.0))
print(short.argmax(-1).tolist(), long.argmax(-1).tolist(), single.argmax(-1).tolist())

"""An attention backend keeps a workspace and makes a larger one if a batch needs it."""

# The large eager batch replaces the workspace. The old one, into which the graph writes, is freed:
# the next tensor of its size gets that memory, and a replay overwrites it.

import torch


class Backend:
    def __init__(self):
        self.workspace = None

    def ensure(self, numel):
        if self.workspace is None or self.workspace.numel() < numel:
            self.workspace = torch.empty(
                numel, device="cuda"
            )  # guilty: frees the workspace of the graph
        return self.workspace[:numel]

    def run(self, q, out):
        scores = self.ensure(q.shape[0] * q.shape[0]).view(q.shape[0], q.shape[0])
        torch.mm(q, q.t(), out=scores)  # guilty: the graph writes the workspace of the capture
        torch.mm(scores, q, out=out)


backend = Backend()
q = torch.ones(64, 16, device="cuda")
out = torch.empty(64, 16, device="cuda")
backend.run(q, out)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    backend.run(q, out)

graph.replay()
long = torch.ones(256, 16, device="cuda")
backend.run(long, torch.empty(256, 16, device="cuda"))
labels = torch.zeros(64 * 64, device="cuda")
graph.replay()  # guilty: writes freed memory
print(out.sum().item(), labels.sum().item())

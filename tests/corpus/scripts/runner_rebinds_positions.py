import torch
from torch import nn


class DecodeRunner:
    """One graph for each batch size, as serving engines do."""

    def __init__(self, model, sizes, device):
        self.model, self.graphs, self.outputs = model, {}, {}
        self.input_ids = torch.zeros(max(sizes), dtype=torch.int64, device=device)
        self.positions = torch.zeros(max(sizes), dtype=torch.int64, device=device)
        pool = None
        for size in sorted(sizes, reverse=True):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    model(self.input_ids[:size], self.positions[:size])
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self.outputs[size] = model(self.input_ids[:size], self.positions[:size])
            pool = pool or graph.pool()
            self.graphs[size] = graph

    def __call__(self, ids, positions):
        size = len(ids)
        self.input_ids[:size].copy_(ids)
        self.positions = positions  # guilty: bound again, not copied
        self.graphs[size].replay()
        return self.outputs[size].clone()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, 32), nn.Embedding(64, 32)
        self.head = nn.Linear(32, 100)

    def forward(self, ids, positions):
        return self.head(self.tokens(ids) + self.places(positions))


with torch.inference_mode():
    runner = DecodeRunner(Model().cuda(), [1, 2, 4], "cuda")
    ids = torch.tensor([3, 5], device="cuda")
    for step in range(4):
        positions = torch.full((2,), step, device="cuda")
        ids = runner(ids, positions).argmax(-1)
    print(ids.tolist())

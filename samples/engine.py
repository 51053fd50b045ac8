"""A small serving loop: one CUDA graph for each batch size, all in one memory pool.

    cgtool run samples/engine.py

A batch of requests is padded to the next size that has a graph. Look at: the size that was captured
for nothing, how much of the work is padding, and the one memory pool, which suffices for all sizes
because the largest is captured first.
"""

import torch
from torch import nn

import cgtool

SIZES = (16, 8, 4, 2, 1)
WIDTH = 128


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1)).squeeze(-1)


class Engine:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.tokens = torch.zeros(SIZES[0], 32, dtype=torch.int64, device="cuda")
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        pool = torch.cuda.graph_pool_handle()
        for size in SIZES:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.model(self.tokens[:size])
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                scores = self.model(self.tokens[:size])
            self.graphs[size] = graph, scores

    def score(self, requests: torch.Tensor) -> torch.Tensor:
        count = len(requests)
        size = min(size for size in SIZES if size >= count)
        graph, scores = self.graphs[size]
        self.tokens[:count].copy_(requests)
        cgtool.note(batch=count, padded_batch=size)
        graph.replay()
        return scores[:count].clone()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    engine = Engine(Scorer().cuda().eval())
    best = torch.zeros((), device="cuda")
    for count in (1, 3, 5, 2, 8, 7, 3, 1) * 10:
        requests = torch.randint(1000, (count, 32)).cuda()
        best = torch.maximum(best, engine.score(requests).max())
    print(f"best score {best.item():.3f}")


if __name__ == "__main__":
    main()

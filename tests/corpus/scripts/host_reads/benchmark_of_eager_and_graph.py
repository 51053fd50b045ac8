"""A benchmark: both variants are timed with events around their loops, in alternating rounds."""

import statistics

import torch
from torch import nn


def milliseconds(function, repeat=5):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeat):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeat


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 96),
            nn.Linear(96, width),
        )

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32) for _ in range(4))).cuda().eval()
    x = torch.randn(8, 32, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    variants = {"eager": lambda: model(x), "graph": graph.replay}
    times = {name: [] for name in variants}
    for _ in range(3):
        for name, function in variants.items():
            times[name].append(milliseconds(function))
    torch.testing.assert_close(y, model(x))
    for name, values in times.items():
        print(f"{name}: {statistics.median(values):.3f} ms")


if __name__ == "__main__":
    main()

"""A leapfrog solver rotates three attributes after each replay of one captured step."""

import torch


class Wave:
    def __init__(self, n=64):
        self.past = torch.sin(torch.linspace(0, 6.28, n, device="cuda"))
        self.now = self.past.clone()
        self.next = torch.zeros_like(self.now)

    def step(self):
        lap = self.now.roll(1) + self.now.roll(-1) - 2 * self.now  # guilty: the first grids
        torch.add(2 * self.now - self.past, lap, alpha=0.25, out=self.next)

    def rotate(self):
        self.past, self.now, self.next = (
            self.now,
            self.next,
            self.past,
        )  # guilty: not seen


wave = Wave()
wave.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    wave.step()
for _ in range(10):
    graph.replay()
    wave.rotate()
print(wave.now.abs().max().item())

"""A simulation halves its time step when the energy drifts, and captures its step again."""

import torch


class Spring:
    def __init__(self):
        self.x = torch.ones(128, device="cuda")
        self.v = torch.zeros(128, device="cuda")
        self.dt = 0.2
        self.graphs = {}

    def _step(self):
        self.v.sub_(self.x, alpha=self.dt)
        self.x.add_(self.v, alpha=self.dt)

    def step(self):
        if self.dt not in self.graphs:
            torch.cuda.synchronize()
            self.graphs[self.dt] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[self.dt]):
                self._step()
        self.graphs[self.dt].replay()

    def energy(self):
        return 0.5 * (self.x.square() + self.v.square()).sum().item()


spring = Spring()
spring._step()
start = spring.energy()
for block in range(4):
    for _ in range(3):
        spring.step()
    if abs(spring.energy() - start) > 0.01 * start:
        spring.dt /= 2
    print(block, spring.dt, spring.energy())

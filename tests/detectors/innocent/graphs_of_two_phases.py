"""Each phase of an engine has its graph, and so has each half of a step between two buffers."""

import torch


class Engine:
    def __init__(self):
        self.weight, self.phase = torch.randn(8, 8, device="cuda"), "prefill"
        self.x, self.y = torch.zeros(4, 8, device="cuda"), torch.zeros(1, 8, device="cuda")
        self.forward()
        torch.cuda.synchronize()
        self.first, self.second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.first):
            self.prefilled = self.forward()
        self.phase = "decode"
        with torch.cuda.graph(self.second):
            self.decoded = self.forward()

    def forward(self):
        if self.phase == "prefill":
            return torch.tanh(self.x @ self.weight)
        return torch.relu(self.y @ self.weight)

    def generate(self):
        self.x.normal_()
        self.first.replay()
        self.y.copy_(self.prefilled[-1:])
        for _ in range(3):
            self.second.replay()
            self.y.copy_(self.decoded)
        return self.y.clone()


class Simulation:
    def __init__(self):
        self.now, self.next = torch.rand(16, device="cuda"), torch.zeros(16, device="cuda")
        self.even, self.odd = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.even):
            self.step()
        self.swap()
        with torch.cuda.graph(self.odd):
            self.step()
        self.swap()

    def step(self):
        torch.add(self.now, 0.1 * torch.roll(self.now, 1), out=self.next)

    def swap(self):
        self.now, self.next = self.next, self.now

    def run(self, steps):
        for number in range(steps):
            (self.odd if number % 2 else self.even).replay()


engine, simulation = Engine(), Simulation()
for _ in range(3):
    print(engine.generate().sum().item())
simulation.run(6)
print(simulation.now.sum().item())

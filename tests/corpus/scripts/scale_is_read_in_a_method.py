"""A method captures lines that read a field of its object; the field changes after the method."""

import torch


class Runner:
    def __init__(self):
        self.x = torch.ones(4, device="cuda")
        self.scale = 1.0

    def capture(self):
        self.x * self.scale
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.x * self.scale  # guilty: the same

    def run(self):
        self.graph.replay()
        return self.y.sum().item()


runner = Runner()
runner.capture()
first = runner.run()
runner.scale = 2.0  # guilty: the graph has the scale of the capture
print(first, runner.run())  # eager: 4.0 8.0

"""A static input that an object with ``__call__`` replaces by one of another shape."""

import torch


class Runner:
    def __init__(self):
        self.index = torch.tensor([0, 1, 2, 3], device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = x.index_select(0, self.index[:2])

    def __call__(self, index):
        self.index = index  # <- metadata-address-changed
        self.graph.replay()
        return self.out.clone()


x = torch.arange(4.0, device="cuda")
runner = Runner()
print(runner(torch.tensor([2, 3], device="cuda")).tolist())

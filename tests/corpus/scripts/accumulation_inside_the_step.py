"""Gradient accumulation: the captured function decides itself whether the optimizer steps."""

# The branch is taken once, while capturing. No replay runs the Python code again.

import torch
from torch import nn


class Trainer:
    def __init__(self, accumulate):
        self.model = nn.Linear(4, 1).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accumulate = accumulate
        self.micro_step = 0
        self.x = torch.zeros(4, 4, device="cuda")

    def step(self):
        loss = self.model(self.x).square().mean() / self.accumulate
        loss.backward()
        if (self.micro_step + 1) % self.accumulate == 0:  # guilty: decided once, in the capture
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                self.step()
                self.micro_step += 1
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()


trainer = Trainer(accumulate=2)
trainer.capture()
for i in range(6):
    trainer.x.fill_(float(i))
    trainer.graph.replay()
    trainer.micro_step += 1  # guilty: the branch does not see it
print(trainer.model.weight.sum().item())

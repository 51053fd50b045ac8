"""Gradient accumulation: a host counter chooses between two graphs."""

# The counter is read outside of both graphs.

import torch
from torch import nn


class Trainer:
    def __init__(self, accumulate):
        self.model = nn.Linear(4, 1).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accumulate = accumulate
        self.micro_step = 0
        self.x = torch.zeros(4, 4, device="cuda")

    def accumulate_gradients(self):
        (self.model(self.x).square().mean() / self.accumulate).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.accumulate_gradients()
                self.update()
        torch.cuda.current_stream().wait_stream(side)
        self.backward, self.step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.backward):
            self.accumulate_gradients()
        with torch.cuda.graph(self.step, pool=self.backward.pool()):
            self.update()

    def train(self, batch):
        self.x.copy_(batch)
        self.backward.replay()
        self.micro_step += 1
        if self.micro_step % self.accumulate == 0:
            self.step.replay()


trainer = Trainer(accumulate=2)
trainer.capture()
for i in range(6):
    trainer.train(torch.full((4, 4), float(i)))
print(trainer.model.weight.sum().item())

"""A meter holds the tensors that the graph writes and formats them when it is printed."""

import torch
from torch import nn
from torch.nn import functional


class Meter:
    def __init__(self):
        self.values = {}
        self.smoothed = {}

    def set_postfix(self, **values):
        for name, value in values.items():
            self.values[name] = value
            if name in self.smoothed:
                self.smoothed[name].lerp_(value, 0.1)
            else:
                self.smoothed[name] = value.clone()

    def __str__(self):
        return ", ".join(f"{k}={v:.4f} ({self.smoothed[k]:.4f})" for k, v in self.values.items())


class Trainer:
    def __init__(self, model):
        self.model, self.meter = model, Meter()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.x = torch.randn(8, 4, device="cuda")
        self.y = torch.randn(8, 1, device="cuda")

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.smooth_l1_loss(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.meter.set_postfix(loss=loss.detach(), weight=self.model.weight.detach().norm())


torch.manual_seed(0)
trainer = Trainer(nn.Linear(4, 1).cuda())
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        trainer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    trainer.step()
for _ in range(5):
    trainer.x.normal_()
    graph.replay()
    print(trainer.meter)

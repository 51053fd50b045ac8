"""Forward and backward are captured; the optimizer steps eagerly with a scheduled rate."""

# The learning rate is read by eager code only. Gradients keep their memory.

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
batch = torch.randn(16, 4, device="cuda")


class Step:
    def __init__(self):
        self.graph = None

    def eager(self):
        optimizer.zero_grad(set_to_none=False)
        loss = model(batch).square().mean()
        loss.backward()
        self.loss = loss.detach()  # no autograd node of the warm-up lives on

    def __call__(self):
        if self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.eager()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.eager()
        self.graph.replay()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return self.loss


step = Step()
for _ in range(10):
    batch.normal_()
    step()
    scheduler.step()
print(step.loss.item())

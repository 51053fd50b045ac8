import logging

import torch
from torch import nn
from torch.nn import functional

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")


class Trainer:
    def __init__(self):
        self.model = nn.Linear(16, 4).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.randn(8, 16, device="cuda")
        self.y = torch.randint(4, (8,), device="cuda")
        self.calls = 0

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.calls += 1
        if self.calls % 4 == 0:
            log.info("step %d: loss %.3f", self.calls, loss)  # <- sync-item
        return loss


trainer = Trainer()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        trainer.step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    trainer.step()
graph.replay()

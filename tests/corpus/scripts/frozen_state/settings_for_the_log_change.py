"""Fields of the configuration that no kernel sees are changed: run name, interval, paths."""

import dataclasses
import logging

import torch
from torch import nn

logger = logging.getLogger("train")


@dataclasses.dataclass
class Config:
    run: str = "first"
    log_every: int = 1
    width: int = 8
    rate: float = 0.1
    checkpoints: list = dataclasses.field(default_factory=list)

    @property
    def title(self):
        return f"{self.run}-{self.width}"


config = Config()
model = nn.Linear(config.width, config.width).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=config.rate)
x = torch.randn(4, config.width, device="cuda")


def step():
    logger.debug("a step of %s", config.title)
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for i in range(6):
    if i == 3:
        config.run, config.log_every = "second", 2
        config.checkpoints.append(f"{config.title}.pt")
    x.normal_()
    graph.replay()
    if i % config.log_every == 0:
        logger.warning("%s %d %.4f", config.title, i, loss)

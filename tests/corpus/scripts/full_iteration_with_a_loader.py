"""The whole iteration of training and of validation is captured; a loader fills static buffers."""

import torch
from torch import nn


class StaticBufferLoader:
    def __init__(self):
        self.buffers = {"training": None, "validation": None}

    def __call__(self, batch, stage):
        if self.buffers[stage] is None:
            self.buffers[stage] = {k: v.cuda() for k, v in batch.items()}
        else:
            for key, value in batch.items():
                self.buffers[stage][key].copy_(value, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self.buffers[stage]


class FullGraph:
    def __init__(self, forward_backward, warmup=2):
        self.graphs = {"training": None, "validation": None}
        self.results = {"training": None, "validation": None}
        self.iteration = {"training": 0, "validation": 0}
        self.forward_backward, self.warmup = forward_backward, warmup
        self.loader = StaticBufferLoader()

    def __call__(self, batches, stage):
        data = self.loader(next(batches), stage)
        if self.iteration[stage] < self.warmup:
            result = self.forward_backward(data, stage)
        else:
            if self.graphs[stage] is None:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.results[stage] = self.forward_backward(data, stage)
                self.graphs[stage] = graph
            self.graphs[stage].replay()
            result = self.results[stage]
        self.iteration[stage] += 1
        return result


model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
for p in model.parameters():
    p.grad = torch.zeros_like(p)


def forward_backward(data, stage):
    if stage == "training":
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(data["x"]), data["y"])
        loss.backward()
        optimizer.step()
    else:
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(data["x"]), data["y"])
    return {"loss": loss.detach()}


def batches():
    while True:
        yield {"x": torch.randn(4, 8).pin_memory(), "y": torch.randint(4, (4,)).pin_memory()}


step = FullGraph(forward_backward)
loader = batches()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for epoch in range(2):
        for _ in range(4):
            loss = step(loader, "training")["loss"].item()
        validation = sum(step(loader, "validation")["loss"].item() for _ in range(3)) / 3
        print(epoch, loss, validation)

import collections

import torch
from torch import nn
from torch.nn import functional


class Meter:
    def __init__(self):
        self.total, self.count = collections.Counter(), collections.Counter()

    def update(self, **values):
        for name, value in values.items():
            self.total[name] += value.item()
            self.count[name] += 1

    def __str__(self):
        return " ".join(f"{n}={self.total[n] / self.count[n]:.3f}" for n in self.total)


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
images = torch.randn(8, 3, 8, 8, device="cuda")
labels = torch.randint(4, (8,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        logits = model(images)
    loss = functional.cross_entropy(logits.float(), labels)
    loss.backward()
    optimizer.step()
    return loss.detach(), (logits.argmax(-1) == labels).float().mean()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss, accuracy = step()

for epoch in range(2):
    meter = Meter()
    for _ in range(5):
        images.copy_(torch.randn(8, 3, 8, 8, device="cuda"))
        labels.copy_(torch.randint(4, (8,), device="cuda"))
        graph.replay()
        meter.update(loss=loss, accuracy=accuracy)
    print(epoch, meter)

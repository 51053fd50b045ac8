"""MoCo: the newest keys replace the oldest ones of a queue."""

import torch
from torch import nn
from torch.nn import functional


class MoCo(nn.Module):
    def __init__(self, width=8, size=32):
        super().__init__()
        self.query, self.key = nn.Linear(12, width), nn.Linear(12, width)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(size, width), dim=1))
        self.pointer = 0

    def forward(self, one, two):
        q = functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
            k = functional.normalize(self.key(two), dim=1)
        scores = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().mT], 1) / 0.2
        loss = functional.cross_entropy(scores, scores.new_zeros(len(q), dtype=torch.long))
        self.queue[self.pointer : self.pointer + len(k)] = k  # guilty: the same rows each time
        self.pointer = (self.pointer + len(k)) % len(self.queue)  # guilty: counted on the host
        return loss


torch.manual_seed(0)
model = MoCo().cuda()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.1)
views = torch.randn(2, 8, 12, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(*views)
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(6):
    views.copy_(torch.randn(2, 8, 12))
    graph.replay()
    print(loss.item())

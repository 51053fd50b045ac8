"""Adaptation to one speaker at a time: weights and moments are put back in place."""

import torch
from torch import nn
from torch.nn import functional


class Snapshot:
    """Copies of the tensors of a model and its optimizer, restored without new memory."""

    def __init__(self, model, optimizer):
        self.tensors = [*model.parameters(), *model.buffers()]
        for state in optimizer.state.values():
            self.tensors += [value for value in state.values() if torch.is_tensor(value)]
        self.copies = [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def restore(self):
        for tensor, copy in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(copy)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 40), nn.LayerNorm(40), nn.GELU(), nn.Linear(40, 20)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, capturable=True)
frames = torch.zeros(32, 20, device="cuda")
targets = torch.zeros(32, 20, device="cuda")


def adapt():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.l1_loss(model(frames), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


weights = {name: value.clone() for name, value in model.state_dict().items()}
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        adapt()
torch.cuda.current_stream().wait_stream(side)
model.load_state_dict(weights)
for state in optimizer.state.values():
    for value in state.values():
        value.zero_()
start = Snapshot(model, optimizer)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = adapt()

for speaker in range(3):
    start.restore()
    for _ in range(5):
        recording = torch.randn(32, 20) + speaker
        frames.copy_(recording)
        targets.copy_(recording.roll(1, 1))
        graph.replay()
    print(speaker, loss.item())

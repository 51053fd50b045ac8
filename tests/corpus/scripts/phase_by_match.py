"""A curriculum: `match` on an enum chooses the loss inside the captured step."""

import enum

import torch
from torch import nn


class Phase(enum.Enum):
    RECONSTRUCT = 1
    SPARSE = 2


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(20, 6), nn.Linear(6, 20)
        self.phase = Phase.RECONSTRUCT

    def forward(self, x):
        z = torch.relu(self.enc(x))
        loss = (self.dec(z) - x).square().mean()
        match self.phase:  # guilty: the phase of the capture
            case Phase.RECONSTRUCT:
                return loss
            case Phase.SPARSE:
                return loss + 0.1 * z.abs().mean()


model = Autoencoder().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.zeros(32, 20, device="cuda")


def iteration():
    opt.zero_grad(set_to_none=True)
    loss = model(batch)
    loss.backward()
    opt.step()
    return loss


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        iteration()
torch.cuda.current_stream().wait_stream(stream)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    static_loss = iteration()

for epoch in range(4):
    if epoch == 2:
        model.phase = Phase.SPARSE  # guilty: replays do not see it
    for _ in range(5):
        batch.copy_(torch.rand(32, 20))
        g.replay()
    print(epoch, model.phase.name, round(static_loss.item(), 5))

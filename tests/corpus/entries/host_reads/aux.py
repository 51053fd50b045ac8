import torch
from torch import nn


# last output kept as an attribute for the program to read after the replay
class Aux(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.aux_loss = None

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        self.aux_loss = p.mean(0).square().sum()
        return p


def aux(device):
    m = Aux().to(device)
    x = torch.randn(8, 4, device=device)

    def step():
        m.zero_grad()
        loss = m(x).log().mean() + 0.01 * m.aux_loss
        loss.backward()
        return loss

    return step

"""Results that the device copies to pinned memory, and what the host does with them."""

import torch
from torch import nn


def loss_to_pinned_memory(device):
    torch.manual_seed(0)
    model = nn.Linear(6, 1).to(device)
    host = torch.empty(2, pin_memory=True)
    x, y = torch.randn(8, 6, device=device), torch.randn(8, 1, device=device)
    opt = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=device), foreach=True)

    def step():
        opt.zero_grad(set_to_none=True)
        loss = (model(x) - y).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
        host.copy_(torch.stack([loss.detach(), model.weight.grad.norm()]), non_blocking=True)
        return loss

    return step


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.wide = nn.Linear(6, 6), nn.Linear(6, 6)
        self.flag = torch.zeros(1, pin_memory=True)

    @torch.no_grad()
    def forward(self, x):
        h = self.fc(x)
        self.flag.copy_((h.sum() > 0).float().view(1), non_blocking=True)
        if self.flag[0] > 0:  # guilty: the host reads the flag before the copy has run
            h = h + self.wide(x)
        return h


def gate_by_a_pinned_flag(device):
    torch.manual_seed(0)
    return Gate().to(device), (torch.randn(4, 6, device=device),)


def activation_parked_on_the_host(device):
    parked = torch.zeros(40, 40, pin_memory=True)
    weight = torch.randn(40, 40, device=device) / 40

    def forward(x):
        y = x @ weight
        parked.copy_(y, non_blocking=True)
        z = y.relu()
        return z + parked.to(device, non_blocking=True)

    return forward, (torch.randn(40, 40, device=device),)


def last_result_comes_back(device):
    parked = torch.zeros(4, 4, pin_memory=True)
    weight = torch.randn(4, 4, device=device)

    def forward(x):
        last = torch.empty(4, 4, device=device)
        last.copy_(parked, non_blocking=True)
        y = x @ weight + 0.5 * last
        parked.copy_(y, non_blocking=True)
        return y

    return forward, (torch.randn(4, 4, device=device),)


def scale_read_from_pinned_memory(device):
    peak = torch.ones(1, pin_memory=True)
    weight = torch.randn(4, 4, device=device)

    def forward(x):
        peak.copy_(x.abs().max().view(1), non_blocking=True)  # guilty: the host reads it at once
        return (x @ weight) / float(peak)  # guilty: the host reads it before the copy has run

    return forward, (torch.randn(4, 4, device=device),)

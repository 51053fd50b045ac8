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


def kept_on_the_host_for_later(device):
    weight = torch.randn(4, 4, device=device)
    history = []

    def forward(x):
        y = (x @ weight).relu()
        history[:] = [y.mean(0).to("cpu", non_blocking=True)]  # guilty if refuses-pinning: pins
        return y

    return forward, (torch.randn(8, 4, device=device),)


def returned_with_its_host_copy(device):
    model = nn.Linear(4, 4).to(device)

    def forward(x):
        y = model(x)
        host = y.detach().to(
            "cpu", torch.float64, non_blocking=True
        )  # guilty if refuses-pinning: pins
        return y, host

    return forward, (torch.randn(8, 4, device=device),)


def offloaded_and_fetched(device):
    first = torch.randn(16, 16, device=device) / 16
    second = torch.randn(16, 16, device=device) / 16

    def forward(x):
        saved = (x @ first).to("cpu", non_blocking=True)  # guilty if refuses-pinning: pins
        y = (x @ second).tanh()
        return y + saved.to(device, non_blocking=True)

    return forward, (torch.randn(8, 16, device=device),)


def result_in_a_new_pinned_buffer(device):
    results = []

    def forward(x):
        y = x.softmax(-1)
        host = torch.empty(8, 4, pin_memory=True)  # guilty if refuses-pinning: pins
        results[:] = [host.copy_(y, non_blocking=True)]
        return y * 2

    return forward, (torch.randn(8, 4, device=device),)


def limit_read_of_an_asynchronous_copy(device):
    def forward(x):
        limit = x.abs().amax().to("cpu", non_blocking=True)  # guilty: the host reads it at once
        return x / float(limit)  # guilty: the host reads it before the copy has run

    return forward, (torch.randn(8, 4, device=device),)


def skip_by_an_asynchronous_flag(device):
    wide = torch.randn(4, 4, device=device)

    def forward(x):
        is_large = (x.norm() > 4).to("cpu", non_blocking=True)
        if is_large:  # guilty: the host reads the flag before the copy has run
            x = x @ wide
        return x.relu()

    return forward, (torch.randn(8, 4, device=device),)


def statistics_to_pinned_memory_with_a_wait(device):
    host = torch.zeros(4, pin_memory=True)

    def forward(x):
        y = x * x.sigmoid()
        host.copy_(y.mean(0))  # guilty: the host waits for the copy
        return y

    return forward, (torch.randn(8, 4, device=device),)


def table_from_pinned_memory_with_a_wait(device):
    table = torch.randn(8, 4).pin_memory()

    def forward(x):
        return x * table.to(device)  # guilty: the host waits for the copy

    return forward, (torch.randn(8, 4, device=device),)


def statistics_to_pageable_memory(device):
    host = torch.zeros(4)

    def forward(x):
        y = x * x.sigmoid()
        host.copy_(y.mean(0), non_blocking=True)  # guilty: ordinary memory of the host
        return y

    return forward, (torch.randn(8, 4, device=device),)


def every_second_column_to_pinned_memory(device):
    host = torch.zeros(8, 8, pin_memory=True)

    def forward(x):
        y = x.cumsum(-1)
        host[:, ::2].copy_(y, non_blocking=True)  # guilty: by way of ordinary memory of the host
        return y

    return forward, (torch.randn(8, 4, device=device),)

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


# Gradients are gathered in a bucket, which is reduced when the last of them has arrived.
class _Bucket:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.buffer = torch.cat([torch.zeros_like(each).flatten() for each in self.parameters])
        self.waiting = len(self.parameters)
        self.views, start = {}, 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            self.views[parameter] = self.buffer[start:end].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self.arrived)
            start = end

    def arrived(self, parameter):
        self.views[parameter].copy_(parameter.grad)
        self.waiting -= 1
        if self.waiting == 0:
            self.buffer.div_(2)
            self.waiting = len(self.parameters)


def bucket_is_reduced_by_its_last_gradient(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    bucket = _Bucket(model.parameters())
    x, y = torch.randn(4, 6, device=device), torch.randn(4, 1, device=device)

    def step():
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter, gradient in bucket.views.items():
                parameter.sub_(gradient, alpha=0.1)
        return loss.detach()

    return step

import torch
from torch.nn import functional


def swaps_twice(device):
    fields = [torch.rand(16, 16, device=device), torch.zeros(16, 16, device=device)]
    kernel = torch.full((1, 1, 3, 3), 1 / 9, device=device)

    def diffuse():
        for _ in range(2):
            now, then = fields
            then.copy_(functional.conv2d(now[None, None], kernel, padding=1)[0, 0])
            fields.reverse()
        return fields[0] * 1.0

    return diffuse

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass
class _Request:
    temperature: float
    top_k: int
    penalty: float = 0.0


class _Sampler:
    def __init__(self, requests, device):
        self.requests = requests
        self.device = device

    def __call__(self, logits):
        temperatures = torch.tensor(  # <- h2d-tensor-from-python
            [request.temperature for request in self.requests], device=self.device
        )
        largest = max(request.top_k for request in self.requests)
        values, ids = (logits / temperatures.unsqueeze(1)).topk(largest)
        return ids.gather(1, values.softmax(-1).argmax(-1, keepdim=True))


def sampler_makes_a_tensor_of_temperatures(device):
    sampler = _Sampler([_Request(0.7, 4), _Request(1.0, 8)], device)
    return sampler, (torch.randn(2, 32, device=device),)

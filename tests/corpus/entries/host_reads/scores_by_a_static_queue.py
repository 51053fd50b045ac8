import torch
from torch import nn
from torch.nn import functional


def scores_by_a_static_queue(device):
    """MoCo: the queue is written at a pointer on the device."""
    query, key = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device).requires_grad_(False)
    queue = functional.normalize(torch.randn(16, 4, device=device), dim=1)
    pointer = torch.zeros(1, dtype=torch.long, device=device)

    def loss(x):
        q, k = functional.normalize(query(x), dim=1), functional.normalize(key(x), dim=1)
        negative = q @ queue.clone().t()
        logits = torch.cat([(q * k).sum(1, keepdim=True), negative], 1) / 0.07
        with torch.no_grad():
            queue.index_copy_(0, (pointer + torch.arange(4, device=x.device)) % 16, k)
            pointer.add_(4)
        return functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=x.device))

    return loss, (torch.randn(4, 6, device=device),)

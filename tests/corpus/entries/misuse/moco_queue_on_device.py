import torch
from torch import nn
from torch.nn import functional


def moco_queue_on_device(device):
    encoder, momentum = nn.Linear(16, 8).to(device), nn.Linear(16, 8).to(device)
    momentum.load_state_dict(encoder.state_dict())
    momentum.requires_grad_(False)
    queue = functional.normalize(torch.randn(8, 32, device=device), dim=0)
    pointer = torch.zeros(1, dtype=torch.int64, device=device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    x = torch.randn(4, 16, device=device)
    labels = torch.zeros(4, dtype=torch.int64, device=device)

    def step():
        query = functional.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            torch._foreach_lerp_(list(momentum.parameters()), list(encoder.parameters()), 0.001)
            key = functional.normalize(momentum(x + 0.1 * torch.randn_like(x)), dim=1)
        positive = torch.einsum("nc,nc->n", query, key)[:, None]
        negative = query @ queue.clone().detach()
        loss = functional.cross_entropy(torch.cat([positive, negative], 1) / 0.07, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            at = (pointer + torch.arange(4, device=x.device)) % 32
            queue.index_copy_(1, at, key.t())
            pointer.copy_((pointer + 4) % 32)
        return loss

    return step

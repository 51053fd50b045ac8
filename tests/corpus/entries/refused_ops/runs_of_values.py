import torch


def runs_of_values(device):
    def forward(x):
        return torch.unique_consecutive(x)  # <- sync-dynamic-shape-op

    return forward, (torch.randint(5, (9,), device=device),)

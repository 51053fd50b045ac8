import torch


def repeats_by_a_tensor(device):
    counts = torch.tensor([1, 2, 0, 1], device=device)

    def forward(x):
        return x.repeat_interleave(counts, 0)  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 6, device=device),)

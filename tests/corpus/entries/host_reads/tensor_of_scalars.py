import torch


def tensor_of_scalars(device):
    def summary(x):
        return torch.tensor([x.sum(), x.mean()], device=device)  # <- sync-item

    return summary, (torch.randn(8, 8, device=device),)

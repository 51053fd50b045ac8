import torch


def flattens_by_numel(device):
    def flat(x):
        if x.numel() > 100 and x.dim() > 2:
            x = x.flatten(1)
        return x.view(x.size(0), -1).sum(len(x.shape) - 1)

    return flat, (torch.randn(2, 8, 16, device=device),)

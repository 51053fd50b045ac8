import torch


def newton_until_converged(device):
    def root(a):
        x = a.clone()
        while (x * x - a).abs().max() > 1e-5:  # <- sync-truth-value
            x = 0.5 * (x + a / x)
        return x

    return root, (torch.rand(32, device=device) + 0.5,)

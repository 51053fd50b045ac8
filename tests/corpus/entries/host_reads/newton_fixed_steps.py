import torch


def newton_fixed_steps(device):
    def root(a):
        x = a.clone()
        for _ in range(6):
            x = 0.5 * (x + a / x)
        return x

    return root, (torch.rand(32, device=device) + 0.5,)

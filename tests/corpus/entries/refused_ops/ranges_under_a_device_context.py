import torch


def ranges_under_a_device_context(device):
    def weigh(x):
        with torch.device(device):
            weights = (
                torch.arange(3) + torch.full((3,), 2.0) + torch.tensor([], device=device).sum()
            )
        return x * weights

    return weigh, (torch.randn(2, 3, device=device),)

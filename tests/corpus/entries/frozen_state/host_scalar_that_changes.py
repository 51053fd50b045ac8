import torch


def host_scalar_that_changes(device):
    step = torch.tensor(0.0)

    def scale(x):
        step.add_(1)  # <- cpu-work-in-region
        return x / (1 - 0.9**step)  # <- cpu-work-in-region

    return scale, (torch.rand(2, 3, device=device),)

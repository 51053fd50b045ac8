import torch


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def scale_in_pinned_memory(device):
    peak = torch.ones(1, pin_memory=True)

    def run(x):
        peak.copy_(x.max().view(1), non_blocking=True)  # <- cpu-work-in-region
        return x / float(peak)

    return run, (rows(device),)

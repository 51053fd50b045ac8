import torch


def _windows(rows, size):
    held = []
    for row in rows:
        held = [*held, row][-size:]
        if len(held) == size:
            yield sum(held) / size


def generator_of_moving_means(device):
    def f(x):
        means = _windows(x, 3)
        first = next(means)
        return torch.stack([first, *means]).cumsum(0)

    return f, (torch.randn(7, 4, device=device),)

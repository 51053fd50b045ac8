import torch


def rows(device, *shape):
    return torch.linspace(-1, 1, 8, device=device).reshape(shape or (2, 4))


def same_number(device):
    def run(x):
        eager_scale = 2.0
        return x * (2.0 if torch.cuda.is_current_stream_capturing() else eager_scale)

    return run, (rows(device),)

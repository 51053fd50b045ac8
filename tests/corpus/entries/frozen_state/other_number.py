import torch


def rows(device, *shape):
    return torch.linspace(-1, 1, 8, device=device).reshape(shape or (2, 4))


def other_number(device):
    def run(x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        return x * (2.0 if capturing else 1.0)

    return run, (rows(device),)

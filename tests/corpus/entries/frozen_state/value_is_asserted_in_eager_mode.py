import torch


def rows(device, *shape):
    return torch.linspace(-1, 1, 8, device=device).reshape(shape or (2, 4))


def value_is_asserted_in_eager_mode(device):
    def run(x):
        if not torch.cuda.is_current_stream_capturing():
            assert float(x.abs().max()) < 1e9
        return x * 2

    return run, (rows(device),)

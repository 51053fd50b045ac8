"""Code that asks whether a stream is capturing. A mark is on the query of code whose capture
computes something else than eager; without one, the capture does the same."""

import torch
from torch import nn
from torch.cuda import is_current_stream_capturing
from torch.cuda import is_current_stream_capturing as asks


def rows(device, *shape):
    return torch.linspace(-1, 1, 8, device=device).reshape(shape or (2, 4))


def other_number(device):
    def run(x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        return x * (2.0 if capturing else 1.0)

    return run, (rows(device),)


def other_tensor(device):
    first, second = rows(device), rows(device) + 1

    def run(x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        return x + (first if capturing else second)

    return run, (rows(device),)


def other_layer(device):
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(device)

    def run(x):
        index = int(torch.cuda.is_current_stream_capturing())  # <- code-branches-on-capturing
        return layers[index](x)

    return run, (rows(device),)


def other_number_for_an_imported_function(device):
    def run(x):
        capturing = is_current_stream_capturing()  # <- code-branches-on-capturing
        return x * (2.0 if capturing else 1.0)

    return run, (rows(device),)


def other_line_for_a_function_with_another_name(device):
    def run(x):
        if asks():  # <- code-branches-on-capturing
            return x * 2.0
        return x * 1.0

    return run, (rows(device),)


def other_number_for_a_function_of_the_module(device):
    def run(x):
        capturing = torch.cuda.graphs.is_current_stream_capturing()  # <- code-branches-on-capturing
        return x * (2.0 if capturing else 1.0)

    return run, (rows(device),)


def other_number_for_a_private_function(device):
    def run(x):
        capturing = torch._C._cuda_isCurrentStreamCapturing()  # <- code-branches-on-capturing
        return x * (2.0 if capturing else 1.0)

    return run, (rows(device),)


def other_part_on_another_line(device):
    def run(x):
        if torch.cuda.is_current_stream_capturing():  # <- code-branches-on-capturing
            return x[:1].sum(0)
        return x[:2].sum(0)

    return run, (rows(device, 4, 2),)


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        self.average.lerp_(x.mean(0), 0.0 if capturing else 0.1)
        return x - self.average


def average_that_stands_still(device):
    return Average().to(device), (rows(device),)


def length_is_read_in_eager_mode(device):
    lengths = torch.tensor([3, 5], device=device)
    table = rows(device, 8, 1)

    def run(x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        longest = 7 if capturing else int(lengths.max())
        return (table[:longest] * x.sum()).sum(0)

    return run, (rows(device),)


def scale_is_read_in_eager_mode(device):
    def run(x):
        if torch.cuda.is_current_stream_capturing():  # <- code-branches-on-capturing
            scale = 1.0
        else:
            scale = float(x.abs().max())
        return x / (scale + 1)

    return run, (rows(device),)


class Clamp(nn.Module):
    limit = 1.0

    def forward(self, x):
        if not torch.cuda.is_current_stream_capturing():  # <- code-branches-on-capturing
            self.limit = x.abs().amax().item()
        return x.clamp(-self.limit, self.limit)


def limit_is_kept_in_eager_mode(device):
    return Clamp(), (rows(device),)


class Log(nn.Module):
    mean = 0.0

    def forward(self, x):
        if not torch.cuda.is_current_stream_capturing():
            self.mean = x.mean().item()
        return x * 2


def value_is_logged_in_eager_mode(device):
    return Log(), (rows(device),)


def value_is_asserted_in_eager_mode(device):
    def run(x):
        if not torch.cuda.is_current_stream_capturing():
            assert float(x.abs().max()) < 1e9
        return x * 2

    return run, (rows(device),)


def input_is_copied_and_logged_in_eager_mode(device):
    static, names = rows(device), []

    def run(x):
        if not torch.cuda.is_current_stream_capturing():
            names[:] = ["eager"]
        static.copy_(x)
        return static * 2

    return run, (rows(device),)


def gradient_is_computed_and_asks(device):
    model, names = nn.Linear(4, 4).to(device), []

    def run(x):
        if not torch.cuda.is_current_stream_capturing():
            names[:] = ["eager"]
        return model(x)

    return run, (rows(device),)


def same_on_two_lines(device):
    def run(x):
        if torch.cuda.is_current_stream_capturing():
            return x * 2.0
        return x * 2.0

    return run, (rows(device),)


def same_number(device):
    def run(x):
        eager_scale = 2.0
        return x * (2.0 if torch.cuda.is_current_stream_capturing() else eager_scale)

    return run, (rows(device),)


def trains_and_asks(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x, names = rows(device), []

    def step():
        optimizer.zero_grad()
        if not torch.cuda.is_current_stream_capturing():
            names[:] = ["eager"]
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step

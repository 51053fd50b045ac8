"""Values that reach the host where nobody wrote `.item()`, and what only looks like it."""

import bisect
import dataclasses
import functools
import logging
import statistics
import warnings

import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Threshold:
    low: torch.Tensor
    high: torch.Tensor


def settings_are_compared(device):
    base = Threshold(torch.zeros((), device=device), torch.ones((), device=device))

    def f(x):
        now = Threshold(x.amin(), x.amax())
        if now == base:  # guilty: comparing the fields compares two tensors
            return x
        return (x - now.low) / (now.high - now.low)

    return f, (torch.randn(8, device=device),)


def target_is_looked_up(device):
    anchors = [torch.full((), float(n), device=device) for n in range(4)]

    def f(x):
        last = anchors[-1]
        if last in anchors:  # guilty: `in` compares with the anchors before it
            x = x - last
        return x

    return f, (torch.randn(8, device=device),)


def tied_weights_are_looked_up(device):
    # The first of the tuple is the very tensor, and `in` looks at identity first.
    embedding = nn.Embedding(10, 4, device=device)
    head = nn.Linear(4, 10, bias=False, device=device)
    head.weight = embedding.weight

    def f(tokens):
        hidden = embedding(tokens)
        if head.weight in (embedding.weight,):
            hidden = hidden * 0.5
        return head(hidden)

    return f, (torch.randint(10, (6,), device=device),)


def mean_by_statistics(device):
    def f(a, b):
        losses = [(a - b).abs().mean(), (a - b).square().mean()]
        level = statistics.fmean(losses)  # guilty: fmean makes floats of its arguments
        return sum(losses) * level

    return f, (torch.randn(8, device=device), torch.randn(8, device=device))


def bucket_by_bisection(device):
    edges = [0.1, 0.2, 0.4, 0.8]

    def f(x):
        bucket = bisect.bisect_left(edges, x.abs().mean())  # guilty: each comparison is read
        return x * 2.0**bucket

    return f, (torch.randn(8, device=device),)


def class_by_match(device):
    heads = nn.ModuleList(nn.Linear(4, 2, device=device) for _ in range(3))

    def f(x):
        match x.mean(0).argmax():  # guilty: a pattern compares the tensor and reads the answer
            case 0:  # guilty: the same
                return heads[0](x)
            case 1:  # guilty: the same
                return heads[1](x)
            case _:
                return heads[2](x)

    return f, (torch.randn(5, 4, device=device),)


def padded_with_the_minimum(device):
    def f(x):
        return (
            functional.pad(x, (1, 1), value=x.min()).unfold(-1, 3, 1).amax(-1)
        )  # guilty: a number

    return f, (torch.randn(2, 8, device=device),)


def added_by_a_tensor_rate(device):
    rate = torch.full((), 0.1, device=device)
    weight = torch.zeros(8, device=device)

    def f(grad):
        weight.add_(grad, alpha=-rate)  # guilty: alpha is a number, so the tensor is read
        rate.mul_(0.99)
        return weight.clone()

    return f, (torch.randn(8, device=device),)


def noise_with_its_own_deviation(device):
    scale = nn.Linear(4, 4, device=device).requires_grad_(False)

    def f(x):
        return torch.normal(x, functional.softplus(scale(x)))  # guilty: it checks the deviations

    return f, (torch.randn(3, 4, device=device),)


def embedding_with_a_largest_norm(device):
    # The number of distinct rows stays on the device.
    table = nn.Embedding(10, 4, max_norm=1.0, device=device).requires_grad_(False)

    def f(tokens):
        return table(tokens).sum(0)

    return f, (torch.randint(10, (6,), device=device),)


def encoder_packs_padding(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=device)
    encoder = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)
    padding = torch.arange(6, device=device) >= torch.tensor([[4], [6]], device=device)

    def f(x):
        return encoder(x, src_key_padding_mask=padding)  # guilty: it looks at the mask

    return f, (torch.randn(2, 6, 8, device=device),)


def warning_names_the_loss(device):
    def f(x):
        loss = x.square().mean()
        if x.shape[0] < 16:
            warnings.warn(f"small batch, loss {loss:.3f}", stacklevel=2)  # guilty: reads the loss
        return loss

    return f, (torch.randn(8, device=device),)


def message_is_never_formatted(device):
    # The level is above debug, so the arguments are not formatted.
    quiet = logging.Logger("quiet", logging.WARNING)

    def f(x):
        loss = x.square().mean()
        quiet.debug("loss %s of %s", loss, x)
        return loss

    return f, (torch.randn(8, device=device),)


def folds_of_tensors(device):
    # Maximum and sum stay on the device; unpacking is unbind.
    def f(x):
        parts = [row.softmax(0) for row in x]
        largest = functools.reduce(torch.maximum, parts)
        a, b, c = x
        columns = [first - last for first, last in zip(a, c, strict=True)]
        return largest + sum(parts), torch.stack(columns) + b.amax()

    return f, (torch.randn(3, 5, device=device),)


def masks_of_fixed_size(device):
    # A number by a mask is a masked fill; masked_scatter has the mask's shape.
    images = torch.randn(16, device=device)

    def f(x):
        mask = x > 0.5
        y = x.clone()
        y[mask] = 0.0
        y = torch.where(x < -0.5, x.amax(), y)
        return y.masked_scatter(mask, images)

    return f, (torch.randn(16, device=device),)


def filled_with_the_maximum(device):
    def f(x):
        return x.masked_fill(x < -0.5, x.amax())  # guilty: a tensor as value is read on the host

    return f, (torch.randn(16, device=device),)


def repeats_with_a_known_size(device):
    # With output_size nothing is read.
    counts = torch.tensor([1, 2, 3], device=device)

    def f(x):
        return torch.repeat_interleave(x, counts, dim=0, output_size=6).cumsum(0)

    return f, (torch.randn(3, 4, device=device),)


def kernels_by_shape_and_type(device):
    # Shapes, types and strides are known on the host.
    kernels = {
        (torch.float32, True): lambda x: x.sigmoid() * x,
        (torch.float32, False): lambda x: functional.silu(x.contiguous()),
        (torch.bfloat16, True): functional.silu,
    }

    def f(x):
        name = f"{tuple(x.shape)}-{x.dtype}-{x.stride(0)}-{x.device.type}-{x.requires_grad}"
        out = kernels[x.dtype, x.is_contiguous()](x)
        return {name: out, "rows": out.view(-1, x.size(-1)).sum(-1)}

    return f, (torch.randn(3, 4, device=device),)


def checks_unless_it_is_captured(device):
    # The check is left out while capturing and changes nothing.
    layer = nn.Linear(4, 4, device=device)

    def f(x):
        y = layer(x)
        if not torch.cuda.is_current_stream_capturing() and not y.isfinite().all():
            raise FloatingPointError("the layer overflowed")
        return y

    return f, (torch.randn(2, 4, device=device),)

"""Models that give a NaN, for either device, whose first one is at the line that ends with ``NaN``.

Beside each entry there is one whose name ends with ``_healthy``, which gives none.
"""

import torch
from torch.nn import functional

ENTRIES: list[str] = []


def entry(build):
    """``NAME`` and ``NAME_healthy``."""
    ENTRIES.append(build.__name__)
    globals()[f"{build.__name__}_healthy"] = lambda device: build(device, healthy=True)
    return build


@entry
def log_of_a_negative_number(device, healthy=False):
    layer = torch.nn.Linear(6, 3, device=device)

    def step(x):
        rates = layer(x).abs() + 0.1 if healthy else layer(x) - 10
        loss = rates.log()  # NaN
        return loss.mean() * 2

    return step, (torch.ones(4, 6, device=device),)


@entry
def norm_of_zeros_divides(device, healthy=False):
    def step(x):
        zeros = x * 0
        unit = zeros / (zeros.norm() + (1e-6 if healthy else 0))  # NaN
        return unit + 1

    return step, (torch.ones(4, 6, device=device),)


@entry
def variance_is_negative(device, healthy=False):
    def step(x):
        variance = x.square().mean() - x.mean() ** 2 - 1e-3
        variance = variance.relu() if healthy else variance
        deviation = variance.sqrt()  # NaN
        return deviation + 1

    return step, (torch.full((4, 6), 100.0, device=device),)


@entry
def backward_of_a_square_root_at_zero(device, healthy=False):
    weight = torch.ones(6, device=device, requires_grad=True)

    def step(x):
        weight.grad = None
        length = (weight * x + healthy).sqrt()  # NaN
        length.sum().backward()
        return weight.grad

    return step, (torch.zeros(4, 6, device=device),)


@entry
def backward_of_a_distance_of_zero(device, healthy=False):
    points = torch.ones(4, 3, device=device, requires_grad=True)

    def step(x):
        points.grad = None
        apart = points - x
        squares = apart.square()  # NaN
        distance = (squares.sum(-1) + healthy).sqrt()
        distance.sum().backward()
        return points.grad

    return step, (torch.ones(4, 3, device=device),)


@entry
def backward_of_a_logarithm_that_is_masked(device, healthy=False):
    weight = torch.ones(6, device=device, requires_grad=True)

    def step(x):
        weight.grad = None
        y = weight * x
        safe = torch.where(x > 0, y, 1.0) if healthy else y
        logs = safe.log()  # NaN
        torch.where(x > 0, logs, 0.0).sum().backward()
        return weight.grad

    return step, (torch.tensor([0.0, 1, 2, 0, 3, 4], device=device),)


@entry
def second_moment_is_zero(device, healthy=False):
    weight, calls = torch.ones(6, device=device), torch.zeros((), device=device)
    first, second = torch.zeros(6, device=device), torch.zeros(6, device=device)

    def step(x):
        calls.add_(1)
        gradient = weight * x * (calls < 4)  # nothing to learn after the warm-up
        first.mul_(0.0).add_(gradient)
        second.mul_(0.0).addcmul_(gradient, gradient)
        update = first / (second.sqrt() + (1e-8 if healthy else 0.0))  # NaN
        weight.sub_(update, alpha=0.1)
        return gradient.sum()

    return step, (torch.ones(6, device=device),)


@entry
def attention_row_is_all_masked(device, healthy=False):
    project = torch.nn.Linear(8, 24, device=device)
    kept = torch.ones(5, 5, dtype=torch.bool, device=device).tril(0 if healthy else -1)

    def step(x):
        query, key, value = project(x).chunk(3, -1)
        scores = query @ key.transpose(-1, -2)
        scores = scores.masked_fill(~kept, float("-inf"))
        weights = torch.softmax(scores, -1)  # NaN
        return weights @ value

    return step, (torch.ones(2, 5, 8, device=device),)


@entry
def half_precision_overflows(device, healthy=False):
    def step(x):
        wide = x if healthy else x.half()
        logits = wide * 60000 * 2
        centered = logits - logits.amax(-1, keepdim=True)  # NaN
        return centered.exp()

    return step, (torch.ones(4, 6, device=device),)


@entry
def all_targets_are_ignored(device, healthy=False):
    layer = torch.nn.Linear(6, 3, device=device)
    targets = torch.full((4,), 1 if healthy else -100, device=device)

    def step(x):
        logits = layer(x)
        loss = functional.cross_entropy(logits, targets)  # NaN
        return loss * 2

    return step, (torch.ones(4, 6, device=device),)

"""Modules and idioms of Python around tensors."""

import bisect
import collections
import functools
import graphlib
import itertools
import logging
import math
import random
import statistics
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger("corpus.idioms")
log.setLevel(logging.INFO)


def augmentation_by_learned_odds(device):
    odds = nn.Parameter(torch.zeros(3, device=device))
    ops = [torch.sin, torch.tanh, torch.sigmoid]

    def f(x):
        # choices adds the weights up and compares their sum with zero.
        (op,) = random.choices(ops, weights=odds.softmax(0))  # guilty: compares tensors
        return op(x)

    return f, (torch.randn(4, 6, device=device),)


def median_of_the_heads(device):
    heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(5)).to(device)

    def loss(x, y):
        losses = [functional.mse_loss(head(x), y) for head in heads]
        robust = statistics.median(losses)  # guilty: sorts tensors by their values
        return robust + 0.01 * sum(losses)

    return loss, (torch.randn(8, 6, device=device), torch.randn(8, 1, device=device))


class OneExpert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        scores = self.gate(x.mean(0)).softmax(0)
        best = scores.argmax()
        # The list takes its index as an int.
        return scores[best.view(1)] * self.experts[best](x)  # guilty: __index__ of a tensor


def expert_picked_from_a_list(device):
    return OneExpert().to(device), (torch.randn(5, 6, device=device),)


@dataclass
class Residual:
    value: torch.Tensor
    slope: torch.Tensor


class Relax(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x):
        last = None
        for _ in range(6):
            x = torch.tanh(self.layer(x))
            now = Residual(x.norm(), x.mean())
            # The __eq__ of a dataclass compares its fields, and wants to know.
            if now == last:  # guilty: compares tensors of two rounds
                break
            last = now
        return x


def relaxed_until_equal(device):
    return Relax().to(device), (torch.randn(3, 4, device=device),)


def _annealing():
    for step in itertools.count():
        yield 0.5 * (1 + math.cos(math.pi * (step % 7) / 7))


def divergence_weighted_by_a_generator(device):
    encoder = nn.Linear(6, 4).to(device)
    betas = _annealing()

    def loss(x):
        mean, log_var = encoder(x).chunk(2, -1)
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1).mean()
        beta = next(betas)  # guilty: the generator does not advance in a replay
        return mean.square().mean() + beta * divergence  # guilty: beta is frozen

    return loss, (torch.randn(8, 6, device=device),)


class Jacobi:
    """Relaxation between two grids of which one is read and one is written, in turns."""

    def __init__(self, device):
        self.grids = collections.deque(torch.zeros(6, 6, device=device) for _ in "ab")

    def __call__(self, source):
        old, new = self.grids  # guilty: the grids of the capture
        padded = functional.pad(old[None], (1, 1, 1, 1))[0]  # guilty: reads one of them forever
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        new.copy_((around + source) / 4)  # guilty: a replay writes the same grid, reads the other
        self.grids.rotate(1)  # guilty: not done by a replay
        return new.clone()


def grids_rotated_in_a_deque(device):
    return Jacobi(device), (torch.randn(6, 6, device=device),)


class Curriculum(nn.Module):
    """Longer sequences as the training goes on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.milestones = [2, 3, 5, 6, 8, 9, 11, 12]
        self.steps = itertools.count()

    def forward(self, x):
        stage = bisect.bisect(self.milestones, next(self.steps))  # guilty: counts on the host
        x = x[:, : 4 + 2 * stage]  # guilty: the length is frozen
        return self.layer(x).square().mean()


def lengths_of_a_curriculum(device):
    return Curriculum().to(device), (torch.randn(3, 24, 4, device=device),)


class PrefixCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(100, 8), nn.Linear(8, 8)
        self.known = {}

    @torch.no_grad()
    def forward(self, prompt, x):
        key = bytes(prompt.to(torch.uint8))  # guilty: each token becomes an int
        if key not in self.known:
            self.known[key] = self.mix(self.embed(prompt)).mean(0)
        return x + self.known[key]


def prompts_known_by_their_bytes(device):
    return PrefixCache().to(device), (
        torch.randint(0, 100, (6,), device=device),
        torch.randn(2, 8, device=device),
    )


def loss_logged_below_the_level(device):
    model = nn.Linear(6, 3).to(device)

    def step(x, y):
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        # Never formatted: the level of the logger is INFO.
        log.debug("loss %s, logits of %r", loss, model)
        loss.backward()
        if log.isEnabledFor(logging.DEBUG):
            log.debug("gradient %f", model.weight.grad.norm().item())
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


def view_tried_before_a_reshape(device):
    def f(x):
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        weights = (heads @ heads.mT).softmax(-1)
        mixed = (weights @ heads).transpose(1, 2)
        try:
            # Refused by the strides, on the host: nothing is launched.
            flat = mixed.view(*x.shape)
        except RuntimeError:
            flat = mixed.reshape(*x.shape)
        return flat.sum(-1)

    return f, (torch.randn(2, 5, 8, device=device),)


def modules_in_topological_order(device):
    needs = {"out": {"left", "right"}, "left": {"stem"}, "right": {"stem", "left"}, "stem": set()}
    layers = nn.ModuleDict({name: nn.Linear(6, 6) for name in needs}).to(device)

    def f(x):
        sorter, done = graphlib.TopologicalSorter(needs), {}
        sorter.prepare()
        while sorter.is_active():
            for name in sorted(sorter.get_ready()):
                inputs = [done[other] for other in sorted(needs[name])] or [x]
                done[name] = torch.tanh(layers[name](torch.stack(inputs).sum(0)))
                sorter.done(name)
        return done["out"]

    return f, (torch.randn(4, 6, device=device),)


class Momentum:
    """State by parameter, which goes when the parameter goes."""

    def __init__(self):
        self.state = weakref.WeakKeyDictionary()

    @torch.no_grad()
    def step(self, module):
        velocity = self.state.get(module)
        if velocity is None:
            velocity = self.state[module] = [torch.zeros_like(p) for p in module.parameters()]
        for p, v in zip(module.parameters(), velocity, strict=True):
            v.mul_(0.9).add_(p.grad)
            p.sub_(v, alpha=0.05)
            p.grad = None


def velocity_in_a_weak_dictionary(device):
    model, momentum = nn.Linear(6, 3).to(device), Momentum()

    def step(x, y):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        momentum.step(model)
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


class Counted(nn.Module):
    """Counts its calls and tokens for a report; no tensor depends on them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.seen = collections.Counter()

    def forward(self, x):
        self.seen.update(calls=1, tokens=x.shape[0] * x.shape[1])
        self.seen[f"length {x.shape[1]}"] += 1
        return self.layer(x).relu()


def calls_in_a_counter(device):
    return nn.Sequential(Counted(), Counted()).to(device), (torch.randn(2, 5, 6, device=device),)


def parameters_grouped_by_shape(device):
    sizes = [(4, 4), (4,), (4, 4), (4,), (2, 4)]
    parameters = [nn.Parameter(torch.randn(size, device=device)) for size in sizes]

    def step(x):
        hidden = torch.tanh(x @ parameters[0] + parameters[1])
        loss = ((hidden @ parameters[2] + parameters[3]) @ parameters[4].T).square().mean()
        grads = torch.autograd.grad(loss, parameters)
        pairs = sorted(zip(parameters, grads, strict=True), key=lambda pair: pair[0].shape)
        with torch.no_grad():
            for _, group in itertools.groupby(pairs, key=lambda pair: pair[0].shape):
                values, slopes = zip(*group, strict=True)
                stacked = torch.stack(slopes)
                scale = stacked.flatten(1).norm(dim=1).clamp_min(1e-6).reciprocal()
                scaled = [slope * each for slope, each in zip(stacked, scale, strict=True)]
                torch._foreach_sub_(values, scaled, alpha=0.1)
        return loss

    return step, (torch.randn(8, 4, device=device),)


@functools.cache
def _order(shapes):
    """The cheapest pair of neighbors to multiply first, again and again."""
    shapes, order = list(shapes), []
    while len(shapes) > 1:
        costs = [a[0] * a[1] * b[1] for a, b in itertools.pairwise(shapes)]
        at = costs.index(min(costs))
        shapes[at : at + 2] = [(shapes[at][0], shapes[at + 1][1])]
        order.append(at)
    return tuple(order)


def chain_multiplied_by_a_cached_plan(device):
    def f(*matrices):
        left = list(matrices)
        for at in _order(tuple(tuple(m.shape) for m in matrices)):
            left[at : at + 2] = [left[at] @ left[at + 1]]
        return left[0]

    sizes = [(3, 8), (8, 2), (2, 9), (9, 4)]
    return f, tuple(torch.randn(size, device=device) for size in sizes)

"""Updates that make new tensors, hooks and backwards with numbers of their own, bandits."""

import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def flat_vector_becomes_the_parameters(device):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def step():
        loss = functional.mse_loss(model(x), y)  # guilty: reads the memory of the capture
        grads = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            flat = parameters_to_vector(model.parameters())
            flat = flat - 0.1 * parameters_to_vector(grads)
            vector_to_parameters(flat, model.parameters())  # guilty: parameters with other memory
        return loss

    return step


def parameters_in_a_new_dict(device):
    model = nn.Linear(4, 1).to(device)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss(parameters):
        return functional.mse_loss(
            torch.func.functional_call(model, parameters, (x,)), y
        )  # guilty: reads the old ones

    def step():
        nonlocal parameters
        grads, value = torch.func.grad_and_value(loss)(parameters)
        parameters = {k: p - 0.1 * grads[k] for k, p in parameters.items()}  # guilty: new tensors
        return value

    return step


class Damped(nn.Module):
    """A hook on the hidden state damps its gradient, more with each backward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.damping = 1.0

    def damp(self, grad):
        self.damping *= 0.98  # guilty: falls only when Python runs
        return grad * self.damping  # guilty: the damping of the capture

    def forward(self, x):
        hidden = self.first(x).relu()
        hidden.register_hook(self.damp)
        return self.second(hidden)


def gradient_damped_by_a_hook(device):
    return Damped().to(device), (torch.randn(5, 4, device=device),)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        norm = grad.norm()
        if norm > 1.0:  # guilty: in backward the host waits too
            grad = grad / norm
        return grad


def backward_that_clips_with_an_if(device):
    first, second = nn.Linear(4, 8).to(device), nn.Linear(8, 1).to(device)

    def forward(x):
        return second(Clipped.apply(first(x)))

    return forward, (torch.randn(5, 4, device=device),)


class Bandit(nn.Module):
    """UCB over experts; counts and values are lists of Python."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.counts, self.rewards = [1] * 3, [0.3, 0.2, 0.1]

    def choose(self):
        total = sum(self.counts)
        scores = [
            reward + math.sqrt(2 * math.log(total) / count)
            for reward, count in zip(self.rewards, self.counts, strict=True)
        ]
        chosen = scores.index(max(scores))
        self.counts[chosen] += 1  # guilty: counts only when Python runs
        return chosen

    @torch.no_grad()
    def forward(self, x):
        return self.experts[self.choose()](x)  # guilty: the expert of the capture


def expert_chosen_by_a_bandit(device):
    return Bandit().to(device), (torch.randn(5, 4, device=device),)


def rotation_by_a_numpy_angle(device):
    points = torch.randn(16, 2, device=device)

    def augment(points):
        angle = np.random.uniform(-0.5, 0.5)  # guilty: drawn on the host
        c, s = math.cos(angle), math.sin(angle)
        x, y = points.unbind(-1)
        return torch.stack([c * x - s * y, s * x + c * y], -1)  # guilty: the angle of the capture

    return augment, (points,)


def replay_from_a_list_of_transitions(device):
    memory = [torch.randn(4, device=device) for _ in range(8)]
    critic = nn.Linear(4, 1).to(device)

    def loss():
        batch = torch.stack(random.sample(memory, 4))  # guilty: the transitions of the capture
        return critic(batch).square().mean().detach()

    return loss


def losses_into_a_pinned_log(device):
    model = nn.Linear(4, 1).to(device).requires_grad_(False)
    log = torch.zeros(8).pin_memory()
    place = 0

    def evaluate(x):
        nonlocal place
        loss = model(x).square().mean()
        log[place].copy_(loss, non_blocking=True)  # guilty: always the place of the capture
        place = (place + 1) % 8  # guilty: moves on only when Python runs
        return loss

    evaluate.log = log
    return evaluate, (torch.randn(5, 4, device=device),)


def count_with_a_fallback(device):
    x = torch.randn(6, 4, device=device)
    mask = torch.rand(6, device=device) > 0.5

    def mean(x, mask):
        try:
            count = int(mask.sum())  # guilty: ends the capture, whatever happens afterwards
        except RuntimeError:
            count = x.shape[0]
        return (x * mask.unsqueeze(-1)).sum(0) / max(count, 1)

    return mean, (x, mask)


def metric_on_a_stream_nobody_waits_for(device):
    model = nn.Linear(4, 3).to(device).requires_grad_(False)
    metric, side = torch.zeros((), device=device), torch.cuda.Stream()

    def evaluate(x):
        y = model(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            metric.copy_(y.abs().mean())  # guilty: the capture ends before it is joined
        return y.softmax(-1)

    return evaluate, (torch.randn(5, 4, device=device),)


def features_freed_while_a_stream_reads(device):
    weight, side = torch.randn(64, 64, device=device), torch.cuda.Stream()

    def forward(x):
        main = torch.cuda.current_stream()
        features = x @ weight
        side.wait_stream(main)
        with torch.cuda.stream(side):
            right = features.square().mean(0)  # guilty: reads what main is about to overwrite
        del features  # guilty: without record_stream, main reuses the memory at once
        left = x @ weight.t()  # guilty: into the memory of the features
        main.wait_stream(side)
        return left, right

    return forward, (torch.randn(64, 64, device=device),)


def diamond_of_three_streams(device):
    streams = [torch.cuda.Stream() for _ in range(2)]
    layers = [nn.Linear(8, 8).to(device).requires_grad_(False) for _ in range(3)]

    def forward(x):
        main = torch.cuda.current_stream()
        hidden = layers[0](x)
        forked = main.record_event()
        parts = []
        for stream, layer in zip(streams, layers[1:], strict=True):
            with torch.cuda.stream(stream):
                stream.wait_event(forked)
                parts.append(layer(hidden))
                stream.record_event().wait(main)
        return parts[0] * parts[1].sigmoid()

    return forward, (torch.randn(4, 8, device=device),)


def conflicting_gradients_projected(device):
    trunk, heads = nn.Linear(4, 6).to(device), [nn.Linear(6, 1).to(device) for _ in range(2)]
    x = torch.randn(8, 4, device=device)
    targets = torch.randn(2, 8, 1, device=device)

    def step():
        hidden = trunk(x).tanh()
        flat = []
        for head, target in zip(heads, targets.unbind(), strict=True):
            loss = functional.mse_loss(head(hidden), target)
            grads = torch.autograd.grad(loss, [*trunk.parameters()], retain_graph=True)
            flat.append(torch.cat([g.flatten() for g in grads]))
        first, second = flat
        conflict = (first @ second).clamp(max=0)
        merged = first + second - conflict * (first / first.norm().square())
        with torch.no_grad():
            offset = 0
            for p in trunk.parameters():
                p.sub_(0.1 * merged[offset : offset + p.numel()].view_as(p))
                offset += p.numel()
        return merged.norm()

    return step


class Registered:
    """A binding to the address of the input, made again if the input moves."""

    def __init__(self, weight):
        self.weight, self.address, self.view = weight, None, None

    def __call__(self, x):
        if x.data_ptr() != self.address:
            self.address, self.view = x.data_ptr(), x.view(-1, self.weight.shape[0])
        return self.view @ self.weight


def view_kept_by_address(device):
    return Registered(torch.randn(4, 3, device=device)), (torch.randn(2, 5, 4, device=device),)

"""Protocols of Python and recipes of training: where numbers of a step are kept and compared."""

import contextlib
import functools
import itertools
import math
import random
from collections import ChainMap, deque
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.utils import fusion

# --- optimizers


class SignedMomentum:
    """Keeps its steps where it keeps its momentum: on the parameters."""

    def __init__(self, params, rate=0.01):
        self.params, self.rate = list(params), rate

    @torch.no_grad()
    def step(self):
        for p in self.params:
            p.steps = getattr(p, "steps", 0) + 1  # guilty: the same
            if not hasattr(p, "momentum"):
                p.momentum = torch.zeros_like(p)
            p.momentum.lerp_(p.grad, 0.1)
            p.sub_(p.momentum.sign(), alpha=self.rate / p.steps)  # guilty: the rate of one step


def steps_are_kept_on_the_parameters(device):
    net = nn.Linear(4, 1, device=device)
    optimizer = SignedMomentum(net.parameters())

    def step(x):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)


def betas_of_adam_are_raised(device):
    net = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.5, 0.9), capturable=True)

    def step(x):
        for group in optimizer.param_groups:
            first, second = group["betas"]
            group["betas"] = (1 - (1 - first) * 0.7, second)  # guilty: the same
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # guilty: the betas of the capture
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)


def average_runs_by_functional_call(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    average = {name: p.detach().clone() for name, p in net.named_parameters()}

    def step(x):
        target = functional_call(net, average, (x,)).detach()
        loss = functional.mse_loss(net(x + 0.1), target)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(net.named_parameters(), grads, strict=True):
                p.sub_(g, alpha=0.05)
                average[name].lerp_(p, 0.1)
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)


def target_is_copied_by_its_storage(device):
    online, target = (torch.randn(6, device=device) for _ in range(2))

    def step(g):
        online.sub_(g, alpha=0.1)
        value = (target * g).sum()
        target.untyped_storage().copy_(online.untyped_storage())
        return value

    return step, (torch.randn(6, device=device),)


# --- settings that a call changes, or does not


def keyword_default_is_halved(device):
    def blend(x, y, *, share=0.5):
        return x * share + y * (1 - share)  # guilty: the share of the capture

    def step(x, y):
        z = blend(x, y)
        blend.__kwdefaults__["share"] *= 0.5  # guilty: the same
        return z

    return step, (torch.randn(8, device=device), torch.randn(8, device=device))


def keywords_of_a_partial_change(device):
    smooth = functools.partial(torch.lerp, weight=0.9)

    def step(x, y):
        z = smooth(x, y)  # guilty: the weight of the capture
        smooth.keywords["weight"] *= 0.8  # guilty: the same
        return z

    return step, (torch.randn(8, device=device), torch.randn(8, device=device))


class Rotating(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6, device=device) for _ in range(3))

    @torch.no_grad()
    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()  # guilty: the order of the capture
        self.blocks.insert(0, self.blocks.pop(-1))  # guilty: the same
        return x


def blocks_change_their_order(device):
    return Rotating(device), (torch.randn(2, 6, device=device),)


def experts_take_a_full_turn(device):
    experts = deque(nn.Linear(6, 6, device=device) for _ in range(3))

    @torch.no_grad()
    def step(x):
        total = torch.zeros_like(x)
        for weight in (0.5, 0.3, 0.2):
            total += weight * experts[0](x)
            experts.rotate(1)
        return total

    return step, (torch.randn(2, 6, device=device),)


def frozen_in_every_other_call(device):
    body, head = nn.Linear(4, 4, device=device), nn.Linear(4, 1, device=device)

    def step(x):
        for p in body.parameters():
            p.requires_grad_(not p.requires_grad)  # guilty: the same
        loss = head(body(x).relu()).square().mean()
        params = [p for p in (*body.parameters(), *head.parameters()) if p.requires_grad]
        grads = torch.autograd.grad(loss, params)  # guilty: the parameters of the capture
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.sub_(g, alpha=0.1)
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)


def gradient_hooks_pile_up(device):
    lin = nn.Linear(4, 1, device=device)

    def step(x):
        lin.weight.register_hook(lambda g: g * 0.7)  # guilty: one more in each call
        loss = lin(x).square().mean()
        lin.zero_grad()
        loss.backward()  # guilty: the hooks of the capture
        with torch.no_grad():
            lin.weight.sub_(lin.weight.grad, alpha=0.1)
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)


def gradient_hook_leaves_with_the_call(device):
    lin = nn.Linear(4, 1, device=device)

    def step(x):
        loss = lin(x).square().mean()
        lin.zero_grad()
        with lin.weight.register_hook(lambda g: g / (g.norm() + 1)):
            loss.backward()
        with torch.no_grad():
            lin.weight.sub_(lin.weight.grad, alpha=0.1)
        return loss.detach()

    return step, (torch.randn(8, 4, device=device),)


class Scoped:
    """Each call opens a scope inside the one before it."""

    def __init__(self):
        self.settings = ChainMap({"gain": 1.0})

    def __call__(self, x):
        gain = self.settings["gain"] * 0.9
        self.settings = self.settings.new_child({"gain": gain})  # guilty: the same
        return x * gain  # guilty: the gain of one scope


def scopes_pile_up(device):
    return Scoped(), (torch.randn(8, device=device),)


class WarmupTable(dict):
    """Computes the rate of a step when it is looked up for the first time."""

    def __missing__(self, step):
        rate = self[step] = min(1.0, (step + 1) / 200)
        return rate


def table_grows_by_its_length(device):
    rates, weight = WarmupTable(), torch.ones(8, device=device)

    def step(g):
        rate = rates[len(rates)]  # guilty: the same
        weight.sub_(g, alpha=rate)  # guilty: the rate of the capture
        return weight.clone()

    return step, (torch.randn(8, device=device),)


class Norm(Enum):
    L1 = auto()
    L2 = auto()


class Penalty(nn.Module):
    @functools.singledispatchmethod
    def measure(self, kind, x):
        raise NotImplementedError(kind)

    @measure.register
    def _(self, kind: Norm, x):
        match kind:
            case Norm.L1:
                return x.abs().mean()
            case Norm.L2:
                return x.square().mean().sqrt()

    @measure.register(tuple)
    def _(self, kinds, x):
        return math.prod([self.measure(kind, x) for kind in kinds])

    def forward(self, x):
        return self.measure((Norm.L1, Norm.L2), x) * x


def product_of_two_norms(device):
    return Penalty(), (torch.randn(8, device=device),)


# --- numbers that Python compares


def flags_are_filtered(device):
    def step(x):
        done = x.amax(-1) > 1.5
        finished = sum(1 for _ in filter(None, done.unbind()))  # guilty: truth of each flag
        return x / (1 + finished)

    return step, (torch.randn(5, 8, device=device),)


def losses_until_one_is_small(device):
    def step(x):
        losses = (x - shift for shift in (0.0, 0.5, 1.0))
        means = (part.square().mean() for part in losses)
        kept = list(itertools.takewhile(lambda mean: mean < 9.0, means))  # guilty: compares
        return torch.stack([x.mean(), *kept]).sum()

    return step, (torch.randn(16, device=device),)


@functools.total_ordering
@dataclass(eq=False)
class Candidate:
    gain: float
    loss: torch.Tensor

    def __eq__(self, other):
        return self is other

    def __lt__(self, other):
        return self.loss < other.loss  # guilty: the same


def candidates_are_ordered(device):
    def search(x):
        candidates = [Candidate(gain, (x * gain - 1).square().mean()) for gain in (0.5, 1.0, 2.0)]
        best = sorted(candidates)[0]  # guilty: compares losses
        return x * best.gain

    return search, (torch.randn(8, device=device),)


def candidates_are_ordered_on_the_device(device):
    gains = torch.tensor([0.5, 1.0, 2.0], device=device)

    def search(x):
        losses = (gains[:, None] * x - 1).square().mean(-1)
        return x * gains.gather(0, losses.argmin(0, keepdim=True))

    return search, (torch.randn(8, device=device),)


def returns_by_accumulate(device):
    def returns(rewards, value):
        steps = reversed(rewards.unbind(1))
        totals = itertools.accumulate(steps, lambda total, r: r + 0.9 * total, initial=value)
        return torch.stack([*itertools.islice(totals, 1, None)][::-1], 1)

    return returns, (torch.randn(3, 5, device=device), torch.randn(3, device=device))


def order_by_a_seed_of_each_call(device):
    weight = torch.randn(6, 4, device=device)

    def step(x):
        rng = random.Random(7)
        for row in rng.sample(range(6), k=3):
            x = x + weight[row] * rng.uniform(0.5, 1.0)
        return x

    return step, (torch.randn(4, device=device),)


# --- modules and autograd


def convolution_is_fused_in_the_call(device):
    conv, norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    conv, norm = conv.to(device).eval(), norm.to(device).eval()

    @torch.no_grad()
    def forward(x):
        return fusion.fuse_conv_bn_eval(conv, norm)(x).relu()

    return forward, (torch.randn(2, 3, 6, 6, device=device),)


def features_by_hooks_that_leave(device):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)

    @torch.no_grad()
    def step(x):
        features = []
        with contextlib.ExitStack() as stack:
            for layer in net:
                handle = layer.register_forward_hook(lambda *args: features.append(args[-1]))
                stack.enter_context(handle)
            y = net(x)
        return y, torch.cat(features, -1).norm()

    return step, (torch.randn(3, 6, device=device),)


class ScaledRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x.clamp(min=0) * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        grad_x = grad_scale = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * scale * (x > 0)
        if ctx.needs_input_grad[1]:
            grad_scale = (grad_output * x.clamp(min=0)).sum()
        return grad_x, grad_scale


def gradients_that_are_needed(device):
    scale = nn.Parameter(torch.tensor(2.0, device=device))

    def step(x):
        loss = ScaledRelu.apply(x, scale).square().mean()
        (g,) = torch.autograd.grad(loss, [scale])
        with torch.no_grad():
            scale.sub_(g, alpha=0.01)
        return loss.detach()

    return step, (torch.randn(8, device=device),)


def sample_gradients_in_chunks(device):
    net = nn.Linear(4, 1, device=device)
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(params, x, y):
        return (functional_call(net, params, (x,)) - y).square().sum()

    def norms(x, y):
        grads = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=3)(params, x, y)
        return sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()

    return norms, (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))


class NoisyLinear(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.lin = nn.Linear(6, 6, device=device)
        self.register_buffer("noise", torch.zeros(6, 6, device=device))

    @torch.no_grad()
    def forward(self, x):
        self.noise.uniform_(-0.95, 0.95).erfinv_().mul_(0.1 * 2**0.5).clamp_(-0.2, 0.2)
        return functional.linear(x, self.lin.weight + self.noise, self.lin.bias)


def noise_within_bounds(device):
    return NoisyLinear(device), (torch.randn(3, 6, device=device),)

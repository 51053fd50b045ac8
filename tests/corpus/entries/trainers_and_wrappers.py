"""Steps of training: wrappers of parameters, custom gradients, optimizers, policies."""

import collections
import contextlib
import copy
import functools
import itertools
import math
import operator
import types
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm


def _regression(device, width=8):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)).to(device)
    return model, torch.randn(4, width, device=device), torch.randn(4, 1, device=device)


# --- custom gradients


class Surrogate(Function):
    """A spike with a surrogate gradient whose slope is a class attribute."""

    slope = 5.0

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        sharp = 1 / (1 + Surrogate.slope * v.abs()) ** 2  # guilty: the slope at capture
        Surrogate.slope *= 1.01  # guilty: the same
        return grad * sharp


def spikes_with_a_sharpening_slope(device):
    linear = nn.Linear(8, 8, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        linear.zero_grad(set_to_none=True)
        Surrogate.apply(linear(x)).sum().backward()
        return linear.weight.grad

    return step


class FixedSurrogate(Function):
    @staticmethod
    def forward(ctx, v, slope):
        ctx.slope = slope
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        if not ctx.needs_input_grad[0]:
            return None, None
        (v,) = ctx.saved_tensors
        return grad / (1 + ctx.slope * v.abs()) ** 2, None


class Spiking(nn.Module):
    """Leaky neurons over time; the membrane starts anew in each call."""

    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(8, 8, device=device)
        self.decay = 0.9

    def forward(self, xs):
        membrane, spikes = xs.new_zeros(xs.shape[1:]), []
        for current in self.linear(xs).unbind():
            membrane = self.decay * membrane + current
            spike = FixedSurrogate.apply(membrane - 1, 5.0)
            membrane = membrane - spike.detach()
            spikes.append(spike)
        return torch.stack(spikes).mean(0)


def spikes_over_time(device):
    return Spiking(device), (torch.randn(3, 2, 8, device=device),)


class ClampedGradient(Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.bound = bound
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        largest = grad.abs().max()
        if largest > ctx.bound:  # guilty: the gradient is compared on the host
            grad = grad * (ctx.bound / largest)
        return grad, None


class WithClampedGradient(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(8, 8, device=device)

    def forward(self, x):
        return ClampedGradient.apply(self.linear(x), 0.5)


def gradient_clamped_by_a_host_test(device):
    return WithClampedGradient(device), (torch.randn(4, 8, device=device),)


class TopKActivations(Function):
    """k-sparse units; the indices go to backward in the context."""

    @staticmethod
    def forward(ctx, x, k):
        values, indices = x.topk(k, dim=-1)
        ctx.save_for_backward(indices)
        ctx.shape = x.shape
        return torch.zeros_like(x).scatter_(-1, indices, values)

    @staticmethod
    def backward(ctx, grad):
        (indices,) = ctx.saved_tensors
        kept = grad.gather(-1, indices)
        return grad.new_zeros(ctx.shape).scatter_(-1, indices, kept), None


class SparseCoder(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.encoder = nn.Linear(8, 16, device=device)
        self.decoder = nn.Linear(16, 8, device=device)

    def forward(self, x):
        return self.decoder(TopKActivations.apply(self.encoder(x), 3))


def sparse_coder_with_k_units(device):
    return SparseCoder(device), (torch.randn(4, 8, device=device),)


# --- wrappers of parameters, in the manner of FSDP


class FlatParameter(nn.Module):
    """Parameters of a module are views of one vector, set anew in each forward."""

    def __init__(self, module):
        super().__init__()
        named = list(module.named_parameters())
        self.shapes = [(name, value.shape, value.numel()) for name, value in named]
        self.flat = nn.Parameter(torch.cat([value.detach().flatten() for _, value in named]))
        for name, _ in named:
            owner, leaf = self._owner(module, name)
            delattr(owner, leaf)
        self.module = [module]  # not registered

    @staticmethod
    def _owner(module, name):
        *path, leaf = name.split(".")
        return functools.reduce(getattr, path, module), leaf

    def forward(self, x):
        (module,) = self.module
        pieces = self.flat.split([size for _, _, size in self.shapes])
        for (name, shape, _), piece in zip(self.shapes, pieces, strict=True):
            owner, leaf = self._owner(module, name)
            setattr(owner, leaf, piece.view(shape))
        return module(x)


def views_of_a_flat_parameter(device):
    model, x, _ = _regression(device)
    return FlatParameter(model), (x,)


class Resharding(nn.Module):
    """Frees the gathered weight after the forward, and gathers into new memory before it."""

    def __init__(self, device):
        super().__init__()
        self.shards = nn.ParameterList(torch.randn(4, 8, device=device) for _ in range(2))
        self.gathered = None

    @contextlib.contextmanager
    def unsharded(self):
        self.gathered = torch.cat(list(self.shards))
        try:
            yield self.gathered
        finally:
            self.gathered = None

    def forward(self, x):
        with self.unsharded() as weight:
            return functional.linear(x, weight)


def weight_gathered_in_each_forward(device):
    return Resharding(device), (torch.randn(2, 8, device=device),)


class Prefetching(nn.Module):
    """Which layer's weight is gathered next is remembered from the call before."""

    def __init__(self, device):
        super().__init__()
        self.shards = torch.randn(3, 8, 8, device=device)
        self.order = collections.deque(range(3))
        self.ready = self.shards[0].clone()

    @torch.no_grad()
    def forward(self, x):
        y = x @ self.ready  # guilty: the same
        self.order.rotate(-1)  # guilty: the same
        self.ready = self.shards[self.order[0]].clone()  # guilty: the layer that comes next
        return y


def weight_prefetched_for_the_next_call(device):
    return Prefetching(device), (torch.randn(2, 8, device=device),)


class Positive(nn.Module):
    def forward(self, raw):
        return functional.softplus(raw)

    def right_inverse(self, value):
        return value.expm1().clamp_min(1e-6).log()


def input_convex_network(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
    parametrize.register_parametrization(model[2], "weight", Positive())
    weight_norm(model[0])
    return model, (torch.randn(4, 8, device=device),)


class Annealed(nn.Module):
    """A parametrization that sharpens a mask a little whenever the weight is computed."""

    def __init__(self, shape, device):
        super().__init__()
        self.scores = nn.Parameter(torch.randn(shape, device=device))
        self.beta = 1.0

    def forward(self, weight):
        self.beta = min(self.beta * 1.01, 1e6)  # guilty: the same
        return weight * torch.sigmoid(self.beta * self.scores)  # guilty: the beta at capture


def mask_sharpened_by_a_parametrization(device):
    linear = nn.Linear(8, 8, device=device)
    parametrize.register_parametrization(linear, "weight", Annealed((8, 8), device))
    return linear, (torch.randn(2, 8, device=device),)


class Tied:
    """A descriptor: the weight of the head is that of the embedding."""

    def __init__(self, path):
        self.get = operator.attrgetter(path)

    def __get__(self, owner, kind=None):
        return self if owner is None else self.get(owner)


class TiedModel(nn.Module):
    head = Tied("embedding.weight")

    def __init__(self, device):
        super().__init__()
        self.embedding = nn.Embedding(16, 8, device=device)

    def forward(self, tokens):
        return self.embedding(tokens).tanh() @ self.head.T


def head_tied_by_a_descriptor(device):
    model = TiedModel(device)
    return model, (torch.randint(0, 16, (2, 4), device=device),)


# --- optimizers


class Prodigy:
    """An optimizer whose distance estimate is a tensor on the device."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.start = [p.detach().clone() for p in self.parameters]
        device = self.parameters[0].device
        self.d = torch.full((), 1e-3, device=device)
        self.numerator = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self):
        grads = [p.grad for p in self.parameters]
        moved = torch._foreach_sub(self.start, self.parameters)
        dots = [(g * m).sum() for g, m in zip(grads, moved, strict=True)]
        self.numerator.mul_(0.99).add_(self.d * torch.stack(dots).sum())
        norm = torch.stack(torch._foreach_norm(grads, 1)).sum()
        torch.maximum(self.d, self.numerator / (norm + 1e-8), out=self.d)
        for p, g in zip(self.parameters, grads, strict=True):
            p.sub_(self.d * g.sign())


def distance_estimated_on_the_device(device):
    model, x, y = _regression(device)
    optimizer = Prodigy(model.parameters())

    def step():
        model.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


class Signum(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-3, momentum=0.9, every=4):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "every": every})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(calls=0, average=torch.zeros_like(p))
                state["calls"] += 1  # guilty: the same
                state["average"].lerp_(p.grad, 1 - group["momentum"])
                if state["calls"] % group["every"] == 0:  # guilty: only every fourth call
                    p.sub_(state["average"].sign(), alpha=group["lr"])  # guilty: the same


def signs_are_applied_every_fourth_call(device):
    model, x, y = _regression(device)
    optimizer = Signum(model.parameters())

    def step():
        model.zero_grad(set_to_none=True)
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        return model[0].weight.detach().clone()

    return step


class RAdam:
    """Rectified once the length of the moving average is large enough: a number of the host."""

    def __init__(self, p, lr=1e-2, beta=0.99):
        self.p, self.lr, self.beta = p, lr, beta
        self.square = torch.zeros_like(p)
        self.t = 0

    @property
    def length(self):
        power = self.beta**self.t
        return 2 / (1 - self.beta) - 1 - 2 * self.t * power / (1 - power)

    @torch.no_grad()
    def step(self):
        self.t += 1  # guilty: the same
        g = self.p.grad
        self.square.lerp_(g * g, 1 - self.beta)
        if self.length > 5:  # guilty: the length that the average had at capture
            g = g / (self.square.sqrt() + 1e-8)  # guilty: the same
        self.p.sub_(g, alpha=self.lr)  # guilty: the same


def rectified_after_some_steps(device):
    p = nn.Parameter(torch.randn(8, device=device))
    target = torch.ones(8, device=device)
    optimizer = RAdam(p)

    def step():
        p.grad = None
        functional.mse_loss(p, target).backward()
        optimizer.step()
        return p.detach().clone()

    return step


class LookaheadSteps:
    """k fast steps in one call, then one slow step: the count begins anew in each call."""

    def __init__(self, parameters, k=3, alpha=0.5):
        self.fast = list(parameters)
        self.slow = [p.detach().clone() for p in self.fast]
        self.k, self.alpha = k, alpha

    def run(self, loss):
        for index in range(self.k):
            value = loss()
            grads = torch.autograd.grad(value, self.fast)
            with torch.no_grad():
                torch._foreach_add_(self.fast, grads, alpha=-0.1)
                if index == self.k - 1:
                    torch._foreach_lerp_(self.slow, self.fast, self.alpha)
                    torch._foreach_copy_(self.fast, self.slow)
        return value


def lookahead_of_three_steps_in_a_call(device):
    model, x, y = _regression(device)
    steps = LookaheadSteps(model.parameters())
    return lambda: steps.run(lambda: functional.mse_loss(model(x), y))


class Warmup:
    """A schedule as a callable object; the trainer calls it with its own step."""

    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        return self.peak * min(1.0, step / self.steps)


@dataclass
class Progress:
    step: int = 0
    epoch: int = 0

    def advance(self):
        return Progress(self.step + 1, self.epoch)


class Trainer:
    def __init__(self, device):
        self.model, self.x, self.y = _regression(device)
        self.schedule = Warmup(0.1, 500)
        self.progress = Progress()

    def __call__(self):
        self.model.zero_grad(set_to_none=True)
        loss = functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        self.progress = self.progress.advance()  # guilty: the same
        rate = self.schedule(self.progress.step)  # guilty: the same
        with torch.no_grad():
            for p in self.model.parameters():
                p.add_(p.grad, alpha=-rate)  # guilty: the rate of the step at capture
        return loss


def trainer_with_a_frozen_progress(device):
    return Trainer(device)


class QuietTrainer(Trainer):
    """Counts its progress too, but its rate is a tensor on the device."""

    def __init__(self, device):
        super().__init__(device)
        self.rate = torch.zeros((), device=device)

    def __call__(self):
        self.model.zero_grad(set_to_none=True)
        loss = functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        self.progress = self.progress.advance()
        self.rate.add_(2e-4).clamp_(max=0.1)
        with torch.no_grad():
            for p in self.model.parameters():
                p.sub_(p.grad * self.rate)
        return loss.detach()


def trainer_with_a_rate_on_the_device(device):
    return QuietTrainer(device)


class GradientBuckets:
    """Gradients are copied into buckets by hooks, as DDP does; how many are ready is counted."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.bucket = torch.zeros(sum(p.numel() for p in self.parameters), device="cpu").to(
            self.parameters[0].device
        )
        self.pending = len(self.parameters)
        owner = weakref.ref(self)
        start = 0
        for p in self.parameters:
            place = self.bucket[start : start + p.numel()]
            p.register_post_accumulate_grad_hook(functools.partial(self._ready, owner, place))
            start += p.numel()

    @staticmethod
    def _ready(owner, place, p):
        self = owner()
        place.copy_(p.grad.flatten())
        self.pending -= 1
        if self.pending == 0:
            self.bucket.div_(2)
            self.pending = len(self.parameters)


def gradients_in_buckets(device):
    model, x, y = _regression(device)
    buckets = GradientBuckets(model)

    def step():
        model.zero_grad(set_to_none=True)
        functional.mse_loss(model(x), y).backward()
        return buckets.bucket.clone()

    return step


def buckets_reduced_every_second_call(device):
    model, x, y = _regression(device)
    bucket = torch.zeros(sum(p.numel() for p in model.parameters()), device=device)
    places = bucket.split([p.numel() for p in model.parameters()])
    state = types.SimpleNamespace(pending=2 * len(places))

    def ready(place, p):
        place.add_(p.grad.flatten())
        state.pending -= 1  # guilty: the same
        if state.pending == 0:  # guilty: the same
            bucket.div_(2)  # guilty: only in every second call
            state.pending = 2 * len(places)  # guilty: the same

    for place, p in zip(places, model.parameters(), strict=True):
        p.register_post_accumulate_grad_hook(functools.partial(ready, place))

    def step():
        model.zero_grad(set_to_none=True)
        functional.mse_loss(model(x), y).backward()
        return bucket.clone()

    return step


def gradients_clipped_by_their_history(device):
    # AutoClip: the bound is a percentile of all norms so far, kept in a list of the host.
    model, x, y = _regression(device)
    norms = []

    def step():
        model.zero_grad(set_to_none=True)
        functional.mse_loss(model(x), y).backward()
        total = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norms.append(float(total))  # guilty: the norm is read on the host
        bound = sorted(norms)[len(norms) // 10]
        nn.utils.clip_grads_with_norm_(model.parameters(), bound, total)
        return total

    return step


def gradients_clipped_by_a_moving_average(device):
    model, x, y = _regression(device)
    average = torch.ones((), device=device)

    def step():
        model.zero_grad(set_to_none=True)
        functional.mse_loss(model(x), y).backward()
        total = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        average.lerp_(total, 0.01)
        scale = (average / (total + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([p.grad for p in model.parameters()], scale)
        return total, *[p.grad for p in model.parameters()]

    return step


# --- losses


class GradNorm(nn.Module):
    """Weighs its tasks by losses of the first step, which are set in the first call."""

    def __init__(self, device):
        super().__init__()
        self.trunk = nn.Linear(8, 8, device=device)
        self.heads = nn.ModuleList(nn.Linear(8, 1, device=device) for _ in range(2))
        self.first = None

    def forward(self, x):
        h = self.trunk(x).relu()
        losses = torch.stack([head(h).square().mean() for head in self.heads])
        if self.first is None:
            self.first = losses.detach().clone()
        return (losses / self.first).sum()


def tasks_weighed_by_their_first_losses(device):
    return GradNorm(device), (torch.randn(4, 8, device=device),)


class Curriculum(nn.Module):
    """Ignores all but the easiest samples; how many is a share that grows in each forward."""

    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(8, 1, device=device)
        self.shares = map(self._share, itertools.count())

    @staticmethod
    def _share(n):
        return min(1.0, 0.25 + 0.25 * (n // 3))

    def forward(self, x):
        losses = self.linear(x).square().squeeze(-1)
        kept = math.ceil(next(self.shares) * losses.numel())  # guilty: the same
        return losses.topk(kept, largest=False).values.mean()  # guilty: the share at capture


def easiest_samples_first(device):
    return Curriculum(device), (torch.randn(8, 8, device=device),)


class Mixout(nn.Module):
    """Mixes weights with those of a frozen copy; the copy is made in the first call."""

    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(8, 8, device=device)
        self.reference = {}

    def forward(self, x):
        if not self.reference:
            self.reference.update(
                (name, p.detach().clone()) for name, p in self.linear.named_parameters()
            )
        mixed = {
            name: torch.lerp(p, self.reference[name], 0.3)
            for name, p in self.linear.named_parameters()
        }
        return torch.func.functional_call(self.linear, mixed, (x,))


def weights_mixed_with_the_first_ones(device):
    return Mixout(device), (torch.randn(2, 8, device=device),)


def combinations_of_embeddings(device):
    # torch.combinations selects by a mask, and the size of what it selects is read on the host.
    def f(x):
        pairs = torch.combinations(torch.arange(x.shape[0], device=x.device))  # guilty: selects
        return (x[pairs[:, 0]] - x[pairs[:, 1]]).square().sum(-1)

    return f, (torch.randn(4, 8, device=device),)


def pairs_of_embeddings_by_triangle(device):
    def f(x):
        rows, columns = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
        return (x[rows] - x[columns]).square().sum(-1)

    return f, (torch.randn(4, 8, device=device),)


def nuclear_norm_regularizer(device):
    weight = torch.randn(8, 8, device=device)

    def f(x):
        y = x @ weight
        return torch.linalg.norm(y, "nuc")  # guilty: a decomposition that is checked on the host

    return f, (torch.randn(8, 8, device=device),)


def frobenius_regularizer(device):
    weight = torch.randn(8, 8, device=device)

    def f(x):
        y = x @ weight
        return torch.linalg.norm(y) + torch.linalg.norm(y, 1) + torch.linalg.vector_norm(y, 3)

    return f, (torch.randn(8, 8, device=device),)


# --- policies


class NoisyLinear(nn.Module):
    """Factorised noise of Rainbow, drawn on the device in each forward."""

    def __init__(self, device):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(4, 8, device=device))
        self.sigma = nn.Parameter(torch.full((4, 8), 0.1, device=device))
        self.register_buffer("noise", torch.zeros(4, 8, device=device))

    def reset_noise(self):
        a, b = (torch.randn(n, device=self.mu.device) for n in (4, 8))
        a, b = (e.sign() * e.abs().sqrt() for e in (a, b))
        torch.outer(a, b, out=self.noise)

    def forward(self, x):
        if self.training:
            self.reset_noise()
        return functional.linear(x, self.mu + self.sigma * self.noise)


def noisy_layer_of_rainbow(device):
    return NoisyLinear(device), (torch.randn(2, 8, device=device),)


class OrnsteinUhlenbeck:
    def __init__(self, size, device):
        self.state = torch.zeros(size, device=device)

    def sample(self):
        self.state = 0.85 * self.state + 0.2 * torch.randn_like(self.state)  # guilty: rebound
        return self.state


def exploration_with_rebound_noise(device):
    noise = OrnsteinUhlenbeck(4, device)
    policy = nn.Linear(8, 4, device=device).requires_grad_(False)

    def act(observation):
        return policy(observation) + noise.sample()  # guilty: the same

    return act, (torch.randn(2, 8, device=device),)


class OrnsteinUhlenbeckInPlace(OrnsteinUhlenbeck):
    def sample(self):
        self.state.mul_(0.85).add_(torch.randn_like(self.state), alpha=0.2)
        return self.state


def exploration_with_noise_in_place(device):
    noise = OrnsteinUhlenbeckInPlace(4, device)
    policy = nn.Linear(8, 4, device=device).requires_grad_(False)

    def act(observation):
        return policy(observation) + noise.sample()

    return act, (torch.randn(2, 8, device=device),)


class Episode:
    """Steps of an environment on the device; its limit of time is a number of the host."""

    limit = 7

    def __init__(self, device):
        self.position = torch.zeros(4, device=device)
        self.elapsed = 0

    def step(self, action):
        self.position.add_(action.tanh(), alpha=0.1)
        self.elapsed += 1  # guilty: the same
        if self.elapsed >= self.limit:  # guilty: the time of the capture
            self.position.zero_()  # guilty: the same
            self.elapsed = 0  # guilty: the same
        return self.position.clone()


def episode_with_a_time_limit(device):
    return Episode(device).step, (torch.randn(4, device=device),)


class EpisodeOnDevice:
    def __init__(self, device):
        self.position = torch.zeros(4, device=device)
        self.elapsed = torch.zeros((), dtype=torch.int32, device=device)

    def step(self, action):
        self.position.add_(action.tanh(), alpha=0.1)
        self.elapsed.add_(1)
        over = self.elapsed >= Episode.limit
        self.position.masked_fill_(over, 0.0)
        self.elapsed.masked_fill_(over, 0)
        return self.position.clone()


def episode_with_a_time_limit_on_the_device(device):
    return EpisodeOnDevice(device).step, (torch.randn(4, device=device),)


class Population:
    """Evolution strategies: mirrored noise, ranks on the device."""

    def __init__(self, device):
        self.mean = torch.zeros(8, device=device)
        self.ranks = torch.linspace(-0.5, 0.5, 16, device=device)

    def __call__(self, target):
        half = torch.randn(8, 8, device=target.device)
        noise = torch.cat([half, -half])
        fitness = -(self.mean + 0.1 * noise - target).square().sum(-1)
        shaped = torch.empty_like(self.ranks).scatter_(0, fitness.argsort(), self.ranks)
        self.mean.add_(shaped @ noise, alpha=0.05)
        return self.mean.clone()


def evolution_with_ranks(device):
    return Population(device), (torch.randn(8, device=device),)


class HallOfFame:
    """Opponents are snapshots; the one to play against is chosen by the game's number."""

    def __init__(self, device):
        policy = nn.Linear(8, 4, device=device).requires_grad_(False)
        self.members = [copy.deepcopy(policy) for _ in range(3)]
        for member in self.members:
            nn.init.normal_(member.weight)
        self.games = 0

    @property
    def opponent(self):
        return self.members[self.games % len(self.members)]

    def play(self, x):
        y = self.opponent(x)  # guilty: the opponent of the game at capture
        self.games += 1  # guilty: the same
        return y


def opponent_of_the_next_game(device):
    return HallOfFame(device).play, (torch.randn(2, 8, device=device),)

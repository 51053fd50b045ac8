"""Training steps of a researcher: averages, queues, penalties, transforms of functions."""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class WarmedAverage:
    def __init__(self, device):
        self.net = nn.Linear(4, 4).to(device)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.updates = 0

    def __call__(self, x):
        loss = (self.net(x) - x).square().mean()
        grads = torch.autograd.grad(loss, list(self.net.parameters()))
        self.updates += 1  # guilty: counts on the host
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))  # guilty: of the capture
        with torch.no_grad():
            for p, a, g in zip(
                self.net.parameters(), self.average.parameters(), grads, strict=True
            ):
                p.sub_(g, alpha=0.1)
                a.lerp_(p, 1 - decay)  # guilty: the decay of the capture
        return loss.detach()


def average_with_a_warmed_decay(device):
    return WarmedAverage(device), (torch.randn(6, 4, device=device),)


class NoisedAtOneTime:
    def __init__(self, device):
        self.rng = np.random.default_rng(3)
        self.signal = torch.linspace(0.99, 0.05, 10, device=device)
        self.net = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4)).to(device)

    def __call__(self, x):
        # NumPy draws once, at capture: all replays train the same time.
        t = int(self.rng.integers(0, 10))  # guilty: drawn on the host
        kept = self.signal[t]  # guilty: the time of the capture
        noise = torch.randn_like(x)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise  # guilty: that signal
        time = x.new_full((len(x), 1), t / 10)  # guilty: that time
        return (self.net(torch.cat([noisy, time], 1)) - noise).square().mean().detach()


def diffusion_time_from_numpy(device):
    return NoisedAtOneTime(device), (torch.randn(6, 4, device=device),)


class NoisedAtManyTimes:
    def __init__(self, device):
        angle = torch.linspace(0, math.pi / 2, 10, device=device)
        self.signal = torch.cos(angle).square().clamp(0.01, 0.99)
        self.net = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4)).to(device)
        self.losses = torch.zeros(10, device=device)

    def __call__(self, x):
        t = torch.randint(0, 10, (len(x),), device=x.device)
        kept = self.signal[t].unsqueeze(1)
        noise = torch.randn_like(x)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        guess = self.net(torch.cat([noisy, t.unsqueeze(1) / 10], 1))
        each = (guess - noise).square().mean(1)
        self.losses.scatter_reduce_(0, t, each.detach(), "mean", include_self=True)
        return (each * (kept / (1 - kept)).squeeze(1).clamp(max=5)).mean().detach()


def diffusion_times_from_the_device(device):
    return NoisedAtManyTimes(device), (torch.randn(6, 4, device=device),)


class Clipped:
    def __init__(self, device):
        self.policy = nn.Linear(5, 3).to(device)

    def __call__(self, states, actions, advantages):
        loss = 0.0
        for _ in range(2):
            # The permutation is drawn on the CPU; to index, it is copied to the device.
            order = torch.randperm(len(states))  # guilty: drawn on the host
            for rows in order.split(4):
                some = states[rows]  # guilty: copies the indices from pageable memory
                logp = self.policy(some).log_softmax(-1).gather(1, actions[rows, None]).squeeze(1)
                ratio = (logp - logp.detach()).exp()
                loss = loss - (ratio * advantages[rows]).mean()
        return loss.detach()


def minibatches_permuted_on_the_cpu(device):
    actions = torch.arange(8, device=device) % 3
    advantages = torch.randn(8, device=device)
    return Clipped(device), (torch.randn(8, 5, device=device), actions, advantages)


class QueueOfKeys:
    def __init__(self, device):
        self.queue = functional.normalize(torch.randn(6, 12, device=device), dim=0)
        self.at = 0

    def __call__(self, query, key):
        query, key = functional.normalize(query, dim=1), functional.normalize(key, dim=1)
        positive = (query * key).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ self.queue], 1) / 0.2
        loss = -logits.log_softmax(1)[:, 0].mean()
        self.queue[:, self.at : self.at + 4] = key.t()  # guilty: the columns of the capture
        self.at = (self.at + 4) % 12  # guilty: moves on the host
        return loss


def contrast_with_a_host_pointer(device):
    args = (torch.randn(4, 6, device=device), torch.randn(4, 6, device=device))
    return QueueOfKeys(device), args


def contrast_with_labels_made_in_the_step(device):
    scale = nn.Parameter(torch.zeros((), device=device))

    def f(left, right):
        both = functional.normalize(torch.cat([left, right]), dim=1)
        logits = both @ both.t() * scale.exp()
        logits.fill_diagonal_(float("-inf"))
        n = len(left)
        labels = torch.arange(2 * n, device=left.device).roll(n)
        loss = functional.cross_entropy(logits, labels)
        (slope,) = torch.autograd.grad(loss, scale)
        with torch.no_grad():
            scale.sub_(0.1 * slope).clamp_(-2, 4)
        return loss.detach()

    return f, (torch.randn(4, 6, device=device), torch.randn(4, 6, device=device))


class TwoPlayers:
    def __init__(self, device):
        self.maker = nn.Linear(3, 4).to(device)
        self.judge = nn.Linear(4, 1).to(device)
        self.round = 0

    def _move(self, net, loss, rate):
        params = list(net.parameters())
        for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
            p.data.sub_(g, alpha=rate)

    def __call__(self, real):
        fake = self.maker(torch.ones_like(real[:, :3]))
        self.round += 1  # guilty: counts on the host
        if self.round % 2:  # guilty: whose turn it is was decided at capture
            loss = functional.softplus(-self.judge(fake)).mean()  # guilty: that turn
            self._move(self.maker, loss, 0.1)  # guilty: here too
        else:
            loss = functional.softplus(self.judge(fake.detach())).mean()  # guilty: that turn
            loss = loss + functional.softplus(-self.judge(real)).mean()  # guilty: here too
            self._move(self.judge, loss, 0.1)  # guilty: here too
        return loss.detach()


def players_that_take_turns(device):
    return TwoPlayers(device), (torch.randn(5, 4, device=device),)


class Critic:
    def __init__(self, device):
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def __call__(self, real, fake):
        mix = torch.rand(len(real), 1, device=real.device)
        between = torch.lerp(fake, real, mix).requires_grad_()
        score = self.net(between)
        (slope,) = torch.autograd.grad(score.sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = self.net(fake).mean() - self.net(real).mean() + 10 * penalty
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def critic_held_to_a_unit_slope(device):
    # SGD counts nothing, and its buffers exist after the warm-up.
    return Critic(device), (torch.randn(5, 4, device=device), torch.randn(5, 4, device=device))


class Functional:
    """In the style of JAX: parameters go in, new parameters come out."""

    def __init__(self, device):
        self.net = nn.Linear(4, 2).to(device)
        self.params = {name: p.detach() for name, p in self.net.named_parameters()}

    def loss(self, params, x, y):
        return functional.mse_loss(functional_call(self.net, params, (x,)), y)

    def __call__(self, x, y):
        slopes = grad(self.loss)(self.params, x, y)  # guilty: the parameters of the capture
        # New tensors under the old names: a replay starts from the old ones each time.
        self.params = {k: p - 0.1 * slopes[k] for k, p in self.params.items()}  # guilty: rebinds
        return self.loss(self.params, x, y)


def parameters_in_and_new_ones_out(device):
    return Functional(device), (torch.randn(6, 4, device=device), torch.randn(6, 2, device=device))


def slopes_clipped_for_each_sample(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(params, x, y):
        return functional.cross_entropy(functional_call(net, params, (x[None],)), y[None])

    def f(x, y):
        each = vmap(grad(loss), (None, 0, 0))(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, g in each.items():
            clipped = torch.einsum("b,b...->...", factor, g)
            params[name].sub_(0.1 * (clipped + 0.01 * torch.randn_like(clipped)))
        return norms

    return f, (torch.randn(6, 4, device=device), torch.arange(6, device=device) % 3)


def loss_of_the_labeled_tokens(device):
    net = nn.Linear(4, 5).to(device)

    def f(x, labels):
        logits = net(x)
        known = labels != -100
        chosen = logits[known]  # guilty: counts the labeled tokens
        return functional.cross_entropy(chosen, labels[known])  # guilty: here too

    labels = torch.tensor([1, -100, 3, 0, -100, 4], device=device)
    return f, (torch.randn(6, 4, device=device), labels)


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()) for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return x.square().mean()


def blocks_recomputed_without_random_numbers(device):
    return Recomputed().to(device), (torch.randn(5, 6, device=device),)


class Sharpness:
    def __init__(self, device):
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        self.params = list(self.net.parameters())

    def __call__(self, x, y):
        slopes = torch.autograd.grad(functional.mse_loss(self.net(x), y), self.params)
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
        steps = [0.05 * slope / (total + 1e-8) for slope in slopes]
        with torch.no_grad():
            torch._foreach_add_(self.params, steps)
        loss = functional.mse_loss(self.net(x), y)
        slopes = torch.autograd.grad(loss, self.params)
        with torch.no_grad():
            torch._foreach_sub_(self.params, steps)
            torch._foreach_add_(self.params, slopes, alpha=-0.1)
        return loss.detach()


def sharpness_with_two_backwards(device):
    return Sharpness(device), (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))


class Cosine:
    def __init__(self, device):
        self.net = nn.Linear(4, 2).to(device)
        self.step = torch.zeros((), device=device)
        self.rate = torch.full((), 0.1, device=device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=self.rate, capturable=True)

    def __call__(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.smooth_l1_loss(self.net(x), y)
        loss.backward()
        self.step += 1
        self.rate.copy_(0.05 * (1 + torch.cos(self.step * math.pi / 100)))
        self.optimizer.step()
        return loss.detach()


def cosine_schedule_on_the_device(device):
    return Cosine(device), (torch.randn(6, 4, device=device), torch.randn(6, 2, device=device))


class RoundedStraight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        scale = x.abs().amax().clamp(min=1e-5) / levels
        ctx.levels = levels
        ctx.save_for_backward(x, scale)
        return (x / scale).round() * scale

    @staticmethod
    def backward(ctx, slope):
        x, scale = ctx.saved_tensors
        inside = (x.abs() <= scale * ctx.levels).to(slope.dtype)
        return slope * inside, None


def rounded_with_a_straight_gradient(device):
    net = nn.Linear(4, 4).to(device)

    def f(x):
        hidden = RoundedStraight.apply(net(x), 7)
        hard = functional.gumbel_softmax(hidden, tau=0.5, hard=True)
        loss = (hard * hidden).sum(1).mean() + hidden.square().mean()
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        return loss.detach(), *slopes

    return f, (torch.randn(6, 4, device=device),)

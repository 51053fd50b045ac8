"""More innocent ones."""

import logging
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LOG = logging.getLogger("x")


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# AveragedModel with EMA: its count is copied from the CPU: guilty
def averaged_ema(device):
    net = mlp(device)
    avg = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    x = torch.randn(8, 16, device=device)
    avg.update_parameters(net)

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        avg.update_parameters(net)  # guilty: copies its count to the device
        return loss

    return step


def one_hot(device):
    torch.manual_seed(0)

    def run(y):
        return functional.one_hot(y, 5).float().mean(0)

    return run, (torch.randint(5, (16,), device=device),)


def masked_zero(device):
    torch.manual_seed(0)

    def run(x):
        y = x.clone()
        y[y < 0] = 0.0
        return y

    return run, (torch.randn(4, 8, device=device),)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Linear(4, 2)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        d = torch.distributions.Normal(self.mu(x), self.log_std.exp(), validate_args=False)
        a = d.rsample()
        return torch.tanh(a), d.log_prob(a).sum(-1) + d.entropy().sum(-1)


def policy(device):
    torch.manual_seed(0)
    return Policy().to(device), (torch.randn(8, 4, device=device),)


def lstm(device):
    torch.manual_seed(0)
    return nn.LSTM(8, 16, 2, batch_first=True).to(device), (torch.randn(2, 5, 8, device=device),)


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x, *, scale=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        p = 0.1 if self.training else 0.0
        y = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=p, is_causal=True, scale=scale
        )
        return {"y": y.transpose(1, 2).flatten(2), "k": k}


def attn(device):
    torch.manual_seed(0)
    return Attn().to(device), (torch.randn(2, 6, 16, device=device),), {"scale": 0.3}


# parametrization cached within the step
def cached_parametrization(device):
    torch.manual_seed(0)

    class Sym(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).mT

    lin = nn.Linear(8, 8).to(device)
    nn.utils.parametrize.register_parametrization(lin, "weight", Sym())
    x = torch.randn(4, 8, device=device)

    def step():
        lin.zero_grad()
        with nn.utils.parametrize.cached():
            y = lin(x)
            for _ in range(3):
                y = torch.tanh(lin(y))
        loss = y.square().mean()
        loss.backward()
        return loss

    return step


# Muon: Newton-Schulz in a hand-written optimizer with state in a dict made lazily
class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02):
        super().__init__(params, {"lr": lr, "beta": 0.95})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"].mul_(group["beta"]).add_(p.grad)
                u = m / (m.norm() + 1e-7)
                for _ in range(3):
                    a = u @ u.mT
                    u = 1.5 * u - 0.5 * a @ u
                p.add_(u, alpha=-group["lr"])


def muon(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False)).to(
        device
    )
    opt = Muon(net.parameters())
    x = torch.randn(4, 8, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return step


# host times, log lines and counters that go nowhere
class Traced(nn.Module):
    count = 0

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.times = []

    def forward(self, x):
        start = time.perf_counter()
        Traced.count += 1
        y = torch.relu(self.lin(x))
        LOG.debug("call %d of shape %s", Traced.count, tuple(y.shape))
        self.times.append(time.perf_counter() - start)
        return y


def traced(device):
    torch.manual_seed(0)
    return Traced().to(device), (torch.randn(4, 4, device=device),)


# static pinned input: each replay reads it again
def pinned_input(device):
    torch.manual_seed(0)
    host = torch.randn(4, 8).pin_memory()
    x = torch.empty(4, 8, device=device)
    lin = nn.Linear(8, 8).to(device).requires_grad_(False)

    def step():
        x.copy_(host, non_blocking=True)
        return lin(x)

    return step


# gradients are views of one flat buffer
def flat_grads(device):
    net = mlp(device)
    flat = torch.zeros(sum(p.numel() for p in net.parameters()), device=device)
    i = 0
    for p in net.parameters():
        p.grad = flat[i : i + p.numel()].view_as(p)
        i += p.numel()
    x = torch.randn(8, 16, device=device)

    def step():
        flat.zero_()
        loss = net(x).square().mean()
        loss.backward()
        norm = flat.norm()
        flat.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss, norm

    return step


# Megatron's main_grad by post-accumulate hooks
def main_grad(device):
    net = mlp(device)
    for p in net.parameters():
        p.main_grad = torch.zeros_like(p, dtype=torch.float64)

        def hook(p):
            p.main_grad.add_(p.grad)
            p.grad = None

        p.register_post_accumulate_grad_hook(hook)
    x = torch.randn(8, 16, device=device)

    def step():
        for p in net.parameters():
            p.main_grad.zero_()
        for part in x.chunk(2):
            loss = net(part).square().mean()
            loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(p.main_grad.to(p.dtype), alpha=0.01)
        return loss

    return step


# optimizer in backward
def optimizer_in_backward(device):
    net = mlp(device)

    def hook(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.05)
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(hook)
    x = torch.randn(8, 16, device=device)

    def step():
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


# a random order that is the same in every call
class Permuted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        rng = random.Random(0)
        order = rng.sample(range(4), 4)
        gains = np.random.RandomState(1).rand(4)
        for i in order:
            x = torch.tanh(self.layers[i](x)) * float(gains[i])
        return x


def permuted(device):
    torch.manual_seed(0)
    return Permuted().to(device), (torch.randn(4, 4, device=device),)


# split backward at a cut
def cut(device):
    a, b = mlp(device), mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        a.zero_grad()
        b.zero_grad()
        h = a(x)
        z = h.detach().requires_grad_()
        loss = b(z).square().mean()
        loss.backward()
        h.backward(z.grad)
        return loss

    return step


# Hessian-vector product
def hvp(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    v = [torch.randn_like(p) for p in net.parameters()]

    def step():
        params = list(net.parameters())
        grads = torch.autograd.grad(net(x).square().mean(), params, create_graph=True)
        dot = sum((g * w).sum() for g, w in zip(grads, v, strict=False))
        hv = torch.autograd.grad(dot, params)
        for w, h in zip(v, hv, strict=False):
            w.copy_(h / (h.norm() + 1e-8))
        return dot.detach()

    return step


def encoder(device):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    net = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).requires_grad_(False)
    )
    pad = torch.arange(6, device=device)[None] >= torch.tensor([6, 4, 3], device=device)[:, None]

    def run(x):
        return net(x, src_key_padding_mask=pad)

    return run, (torch.randn(3, 6, 16, device=device),)


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        return (
            checkpoint(
                lambda y: torch.tanh(self.a(y)), x, use_reentrant=False, preserve_rng_state=False
            )
            + x
        )


def ckpt_lambda(device):
    torch.manual_seed(0)
    return Reentrant().to(device), (torch.randn(4, 8, device=device, requires_grad=True),)


# fp8-like delayed scaling: amax history on the device, rolled in place
class Delayed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.register_buffer("history", torch.ones(4))

    def forward(self, x):
        scale = self.history.amax() / 448.0
        with torch.no_grad():
            self.history.copy_(self.history.roll(1))
            self.history[0] = x.abs().amax()
        return self.lin((x / scale).round() * scale)


def delayed_scaling(device):
    torch.manual_seed(0)
    return Delayed().to(device), (torch.randn(4, 8, device=device),)


# prioritized sampling and a device pointer
def device_buffer(device):
    torch.manual_seed(0)
    buf = torch.zeros(32, 4, device=device)
    ptr = torch.zeros((), dtype=torch.long, device=device)
    obs = torch.randn(8, 4, device=device)
    slots = torch.arange(8, device=device)

    def step():
        buf.index_copy_(0, (ptr + slots) % 32, obs)
        ptr.add_(8).remainder_(32)
        pick = torch.randint(32, (4,), device=device)
        return buf[pick]

    return step


# frozen batch norm, weights folded in the factory; lazily made workspace; in-place activation
class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4).eval()
        self.ws = None

    def forward(self, x):
        y = self.bn(self.conv(x))
        if self.ws is None or self.ws.shape != y.shape:
            self.ws = torch.empty_like(y)
        torch.clamp(y, min=0, out=self.ws)
        return self.ws * 1


def folded(device):
    torch.manual_seed(0)
    return Folded().to(device).requires_grad_(False), (torch.randn(2, 3, 8, 8, device=device),)


# Gumbel softmax, temperature annealed on the device
def gumbel(device):
    torch.manual_seed(0)
    lin = nn.Linear(8, 5).to(device)
    tau = torch.ones((), device=device)

    def step():
        lin.zero_grad()
        logits = lin(torch.ones(4, 8, device=device))
        g = -torch.empty_like(logits).exponential_().log()
        y = ((logits + g) / tau).softmax(-1)
        hard = torch.zeros_like(y).scatter_(-1, y.argmax(-1, keepdim=True), 1.0)
        loss = (hard - y.detach() + y).square().mean()
        loss.backward()
        tau.mul_(0.99).clamp_(min=0.1)
        return loss

    return step

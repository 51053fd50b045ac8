"""Innocent training steps: they capture, and a replay is right."""

import math
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# EMA with constant decay, foreach, in place.
def ema(device):
    net = mlp(device)
    shadow = [p.detach().clone() for p in net.parameters()]
    opt = torch.optim.AdamW(net.parameters(), lr=torch.tensor(1e-3, device=device), capturable=True)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(shadow, list(net.parameters()), 0.01)
        return loss

    return step


# EMA decay warm-up on the device.
def ema_device_warmup(device):
    net = mlp(device)
    shadow = [p.detach().clone() for p in net.parameters()]
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    n = torch.zeros((), device=device)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            n.add_(1)
            w = 1 - torch.clamp((1 + n) / (10 + n), max=0.999)
            for s, p in zip(shadow, net.parameters(), strict=False):
                s.lerp_(p, w)
        return loss

    return step


# GAN with a fixed number of critic steps, hinge, gradient penalty with device noise.
def wgan_gp(device):
    g, d = mlp(device), mlp(device, out=1)
    og = torch.optim.RMSprop(g.parameters(), lr=1e-3, capturable=True)
    od = torch.optim.RMSprop(d.parameters(), lr=1e-3, capturable=True)
    real = torch.randn(8, 16, device=device)

    def step():
        for _ in range(2):
            od.zero_grad()
            with torch.no_grad():
                fake = g(torch.randn(8, 16, device=device))
            mix = torch.lerp(real, fake, torch.rand(8, 1, device=device)).requires_grad_()
            (grad,) = torch.autograd.grad(d(mix).sum(), mix, create_graph=True)
            ld = d(fake).mean() - d(real).mean() + 10 * (grad.norm(2, 1) - 1).square().mean()
            ld.backward()
            od.step()
        og.zero_grad()
        for p in d.parameters():
            p.requires_grad_(False)
        lg = -d(g(torch.randn(8, 16, device=device))).mean()
        lg.backward()
        for p in d.parameters():
            p.requires_grad_(True)
        og.step()
        return ld, lg

    return step


# lr schedule computed on the device from a device counter.
def device_schedule(device):
    net = mlp(device)
    lr = torch.tensor(1e-3, device=device)
    n = torch.zeros((), device=device)
    opt = torch.optim.Adam(net.parameters(), lr=lr, capturable=True)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        n.add_(1)
        lr.copy_(1e-3 * 0.5 * (1 + torch.cos(math.pi * torch.clamp(n / 100, max=1.0))))
        opt.step()
        return loss

    return step


# Gradient clipping, then a skip of bad steps on the device.
def clip_and_skip(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    params = list(net.parameters())

    def step():
        for p in params:
            p.grad = None
        loss = net(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        ok = torch.isfinite(norm)
        with torch.no_grad():
            for p in params:
                p.sub_(torch.where(ok, p.grad, torch.zeros_like(p.grad)), alpha=0.05)
        return loss, norm

    return step


# Loss scaling on the device, as apex's capturable does.
def device_scaler(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    scale = torch.tensor(1024.0, device=device)
    growth = torch.zeros((), dtype=torch.int32, device=device)
    found = torch.zeros((), device=device)
    params = list(net.parameters())

    def step():
        for p in params:
            p.grad = None
        loss = net(x).square().mean()
        (loss * scale).backward()
        grads = [p.grad for p in params]
        found.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale.reciprocal())
        with torch.no_grad():
            for p in params:
                p.sub_(p.grad * (1 - found), alpha=0.01)
        torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2000)
        return loss

    return step


# Curriculum as a mask from a device counter.
def curriculum_mask(device):
    net = mlp(device)
    x = torch.randn(2, 64, 16, device=device)
    n = torch.full((), 4, dtype=torch.long, device=device)
    pos = torch.arange(64, device=device)

    def step():
        net.zero_grad()
        mask = (pos < n).float()
        loss = (net(x).square().mean(-1) * mask).sum() / (2 * mask.sum())
        loss.backward()
        n.add_(1).clamp_(max=64)
        return loss

    return step


# LayerDrop on the device, dropout, python's random used in the constructor only.
class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        random.seed(3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(random.randint(3, 5)))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        for layer in self.layers:
            keep = (torch.rand((), device=x.device) > 0.3).to(x.dtype)
            x = x + keep * self.drop(torch.tanh(layer(x)))
        return x


def layerdrop(device):
    torch.manual_seed(0)
    return LayerDrop().to(device), (torch.randn(4, 16, device=device),)


# Checkpoint without RNG state.
class Ckpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)

    def part(self, x, gain):
        return functional.gelu(self.b(functional.gelu(self.a(x)))) * gain

    def forward(self, x):
        return checkpoint(self.part, x, 0.5, use_reentrant=False, preserve_rng_state=False)


def checkpointed(device):
    torch.manual_seed(0)
    return Ckpt().to(device), (torch.randn(4, 16, device=device),)


# Autocast without the cache.
def autocast(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = net(x).float().square().mean()
        loss.backward()
        opt.step()
        return loss

    return step


# MLM with a mask by where.
def mlm(device):
    net = mlp(device, out=10)
    x = torch.randn(32, 16, device=device)
    y = torch.randint(10, (32,), device=device)
    mask = torch.rand(32, device=device) < 0.4

    def step():
        net.zero_grad(set_to_none=True)
        target = torch.where(mask, y, -100)
        per = functional.cross_entropy(net(x), target, ignore_index=-100, reduction="sum")
        loss = per / mask.sum().clamp(min=1)
        loss.backward()
        return loss

    return step


# Straight-through quantization as a custom function, with attributes on ctx.
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, levels):
        ctx.levels = levels
        q = torch.round(x / scale)
        ctx.save_for_backward(q)
        return q.clamp(-levels, levels) * scale

    @staticmethod
    def backward(ctx, grad):
        (q,) = ctx.saved_tensors
        return grad * (q.abs() <= ctx.levels), None, None


class Fake(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.register_buffer("amax", torch.ones(()))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.amax.mul_(0.9).add_(x.abs().amax(), alpha=0.1)
        return self.lin(Round.apply(x, self.amax / 127, 127))


def fake_quant(device):
    torch.manual_seed(0)
    return Fake().to(device), (torch.randn(4, 16, device=device, requires_grad=True),)


# Hooks: activations into a static buffer, a gradient hook with a constant, a Python count for
# the log only.
def hooks(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    acts = torch.zeros(8, 32, device=device)
    calls = {"n": 0}

    def forward_hook(module, args, out):
        acts.copy_(out.detach())
        calls["n"] += 1

    net[1].register_forward_hook(forward_hook)
    net[0].weight.register_hook(lambda g: g * 0.5)

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


# SAM: weights are perturbed and restored within the step.
def sam(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(8, 16, device=device)
    old = {}

    def step():
        opt.zero_grad()
        net(x).square().mean().backward()
        with torch.no_grad():
            grads = [p.grad for p in net.parameters()]
            norm = torch.stack([g.norm() for g in grads]).norm()
            for p in net.parameters():
                old[p] = p.clone()
                p.add_(p.grad * (0.05 / (norm + 1e-12)))
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(old.pop(p))
        opt.step()
        return loss

    return step


# Per-sample gradients by torch.func (DP-SGD) with device noise.
def dp_sgd(device):
    net = mlp(device)
    params = {k: v.detach() for k, v in net.named_parameters()}
    x = torch.randn(8, 16, device=device)

    def loss_of(p, one):
        return torch.func.functional_call(net, p, (one[None],)).square().mean()

    grads_of = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))

    def step():
        grads = grads_of(params, x)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        clip = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, g in grads.items():
            total = torch.einsum("b,b...->...", clip, g)
            params[name].sub_((total + 0.1 * torch.randn_like(total)) / 8, alpha=0.1)
        return norms

    return step


# Gradient accumulation in a fixed loop inside one step; the batch is chunked.
def accumulate(device):
    net = mlp(device)
    opt = torch.optim.NAdam(net.parameters(), capturable=True)
    x = torch.randn(16, 16, device=device)

    def step():
        opt.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for part in x.chunk(4):
            loss = net(part).square().mean() / 4
            loss.backward()
            total += loss.detach()
        opt.step()
        return total

    return step


# The log reads the loss only when nothing is captured.
def guarded_log(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    log = []

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        if not torch.cuda.is_current_stream_capturing():
            log.append(loss.item())
        return loss

    return step


# The loss goes to a static pinned buffer; the program reads it after the replay.
def pinned_out(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    host = torch.zeros((), pin_memory=True)

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        host.copy_(loss.detach(), non_blocking=True)
        return loss

    return step


# EMA weights swapped in for the teacher pass and swapped back.
def swapped_back(device):
    net = mlp(device)
    shadow = [p.detach().clone() * 0.9 for p in net.parameters()]
    x = torch.randn(8, 16, device=device)

    def swap():
        for p, s in zip(net.parameters(), shadow, strict=False):
            p.data, s.data = s.data, p.data

    def step():
        net.zero_grad()
        swap()
        with torch.no_grad():
            teacher = net(x)
        swap()
        loss = functional.mse_loss(net(x), teacher)
        loss.backward()
        return loss

    return step


# SAC-like target update and two losses, one optimizer each, detach properly.
def sac(device):
    actor, q = mlp(device, 16, 4), mlp(device, 20, 1)
    qt = mlp(device, 20, 1)
    qt.requires_grad_(False)
    oa = torch.optim.Adam(actor.parameters(), lr=1e-3, capturable=True)
    oq = torch.optim.Adam(q.parameters(), lr=1e-3, capturable=True)
    log_alpha = torch.zeros((), device=device)
    obs, act = torch.randn(16, 16, device=device), torch.randn(16, 4, device=device)
    rew, done = torch.randn(16, 1, device=device), torch.rand(16, 1, device=device) < 0.1

    def update():
        with torch.no_grad():
            a2 = torch.tanh(actor(obs) + 0.1 * torch.randn(16, 4, device=device))
            y = rew + 0.99 * (~done) * (qt(torch.cat([obs, a2], 1)) - log_alpha.exp())
        lq = functional.smooth_l1_loss(q(torch.cat([obs, act], 1)), y)
        oq.zero_grad()
        lq.backward()
        oq.step()
        la = -q(torch.cat([obs, torch.tanh(actor(obs))], 1)).mean()
        oa.zero_grad()
        la.backward()
        oa.step()
        with torch.no_grad():
            for a, b in zip(qt.parameters(), q.parameters(), strict=False):
                a.mul_(0.995).add_(b, alpha=0.005)
        return lq, la

    return update


# Spectral norm and batch norm in training: buffers updated in place.
def norms(device):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(16, 32)),
        nn.BatchNorm1d(32, momentum=0.1),
        nn.LeakyReLU(inplace=True),
        nn.utils.parametrizations.weight_norm(nn.Linear(32, 4)),
    ).to(device)
    return net, (torch.randn(8, 16, device=device),)

"""Optimizers, gradients, curricula and augmentations of published training recipes."""

import copy
import itertools
import math
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional


def _net(device: str, outputs: int = 5) -> nn.Sequential:
    layers = nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs)
    return nn.Sequential(*layers).to(device)


def _batch(device: str, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 12, device=device), torch.randint(5, (n,), device=device)


def gradfilter_ema(model, grads, alpha=0.98, lamb=2.0):
    """Grokfast, as published."""
    if grads is None:
        grads = {n: p.grad.detach() for n, p in model.named_parameters() if p.requires_grad}
    for n, p in model.named_parameters():
        if p.requires_grad:
            grads[n] = grads[n] * alpha + p.grad.detach() * (1 - alpha)  # guilty: rebound
            p.grad = p.grad + grads[n] * lamb
    return grads


def slow_gradients_in_a_dict(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    grads = None

    def step():
        nonlocal grads
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        grads = gradfilter_ema(model, grads)
        opt.step()
        return loss.detach()

    return step


class SlowGradients:
    def __init__(self, parameters, alpha=0.98, lamb=2.0):
        self.parameters = list(parameters)
        self.alpha, self.lamb = alpha, lamb
        self.averages = None

    @torch.no_grad()
    def __call__(self):
        grads = [p.grad for p in self.parameters]
        if self.averages is None:
            self.averages = [g.clone() for g in grads]
        torch._foreach_lerp_(self.averages, grads, 1 - self.alpha)
        torch._foreach_add_(grads, self.averages, alpha=self.lamb)


def slow_gradients_in_place(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    amplify = SlowGradients(model.parameters())

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        amplify()
        opt.step()
        return loss.detach()

    return step


class Sophia(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.96, 0.99), rho=0.04, interval=10):
        super().__init__(params, {"lr": lr, "betas": betas, "rho": rho, "interval": interval})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"], state["h"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(p.grad, 1 - b1)
                if state["step"] % group["interval"] == 1:  # guilty: the branch of the capture
                    state["h"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                ratio = (state["m"].abs() / (group["rho"] * 16 * state["h"] + 1e-15)).clamp(None, 1)
                p.addcmul_(state["m"].sign(), ratio, value=-group["lr"])


def curvature_of_every_tenth_step(device):
    model, (x, y) = _net(device), _batch(device)
    opt = Sophia(model.parameters())

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class SophiaOnDevice(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.96, 0.99), rho=0.04, interval=10):
        super().__init__(params, {"lr": lr, "betas": betas, "rho": rho, "interval": interval})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.int64, device=p.device)
                    state["m"], state["h"] = torch.zeros_like(p), torch.zeros_like(p)
                due = state["step"].remainder(group["interval"]) == 0
                state["step"] += 1
                state["m"].lerp_(p.grad, 1 - b1)
                fresh = state["h"] * b2 + p.grad.square() * (1 - b2)
                state["h"].copy_(torch.where(due, fresh, state["h"]))
                ratio = (state["m"].abs() / (group["rho"] * 16 * state["h"] + 1e-15)).clamp(None, 1)
                p.addcmul_(state["m"].sign(), ratio, value=-group["lr"])


def curvature_of_every_tenth_step_by_where(device):
    model, (x, y) = _net(device), _batch(device)
    opt = SophiaOnDevice(model.parameters())

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class Adafactor(torch.optim.Optimizer):
    """Factored second moments; the step, and with it the decay, may be on the device."""

    def __init__(self, params, on_device):
        super().__init__(params, {"eps": 1e-30, "clip": 1.0, "rate": 0.8})
        self.on_device = on_device

    def _begin(self, p):
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device) if self.on_device else 0.0
            if p.dim() == 2:
                state["row"] = torch.zeros(p.shape[0], device=p.device)
                state["column"] = torch.zeros(p.shape[1], device=p.device)
            else:
                state["square"] = torch.zeros_like(p)
        state["step"] += 1
        return state

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self._begin(p)
                beta = 1.0 - state["step"] ** -group["rate"]
                square = p.grad.square() + group["eps"]
                if p.dim() == 2:
                    state["row"].mul_(beta).add_(square.mean(1) * (1 - beta))
                    state["column"].mul_(beta).add_(square.mean(0) * (1 - beta))
                    row = (state["row"] / state["row"].mean()).rsqrt()[:, None]
                    update = p.grad * row * state["column"].rsqrt()[None]
                else:
                    state["square"].mul_(beta).add_(square * (1 - beta))
                    update = p.grad * state["square"].rsqrt()
                rms = update.norm(2) / update.numel() ** 0.5
                update.div_((rms / group["clip"]).clamp_(min=1.0))
                p.sub_(update, alpha=1e-3)


def factored_moments_of_a_device_step(device):
    model, (x, y) = _net(device), _batch(device)
    opt = Adafactor(model.parameters(), on_device=True)

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class HypergradientSGD:
    """The rate descends along the product of this gradient and the last."""

    def __init__(self, params, device, beta=1e-4):
        self.params, self.beta = list(params), beta
        self.rate = torch.tensor(0.01, device=device)
        self.last = [torch.zeros_like(p) for p in self.params]

    def learn_rate(self, product):
        self.rate = (self.rate + self.beta * product).clamp(min=0)  # guilty: rebound in each call

    @torch.no_grad()
    def step(self):
        grads = [p.grad for p in self.params]
        product = sum((g * h).sum() for g, h in zip(grads, self.last, strict=True))
        self.learn_rate(product)
        torch._foreach_copy_(self.last, grads)
        for p, g in zip(self.params, grads, strict=True):
            p.sub_(self.rate * g)


class HypergradientInPlace(HypergradientSGD):
    def learn_rate(self, product):
        self.rate.add_(self.beta * product).clamp_(min=0)


def _with_optimizer(device, make):
    model, (x, y) = _net(device), _batch(device)
    opt = make(model.parameters(), device)

    def step():
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def rate_learned_and_rebound(device):
    return _with_optimizer(device, HypergradientSGD)


def rate_learned_in_place(device):
    return _with_optimizer(device, HypergradientInPlace)


def zeroth_order_with_a_seed(device):
    """MeZO: the seed saves the memory of the perturbation."""
    model, (x, y) = _net(device).requires_grad_(False), _batch(device)

    def perturb(seed, scale):
        torch.manual_seed(seed)  # guilty: another seed while capturing
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=scale * 1e-3)

    def step():
        seed = random.randrange(1 << 30)
        perturb(seed, 1)
        above = functional.cross_entropy(model(x), y)
        perturb(seed, -2)
        below = functional.cross_entropy(model(x), y)
        perturb(seed, 1)
        slope = (above - below) / 2e-3
        torch.manual_seed(seed)
        for p in model.parameters():
            p.sub_(slope * torch.randn_like(p) * 1e-3)
        return above

    return step


def zeroth_order_with_kept_noise(device):
    model, (x, y) = _net(device).requires_grad_(False), _batch(device)
    params = list(model.parameters())

    def step():
        noise = [torch.randn_like(p) for p in params]
        torch._foreach_add_(params, noise, alpha=1e-3)
        above = functional.cross_entropy(model(x), y)
        torch._foreach_add_(params, noise, alpha=-2e-3)
        below = functional.cross_entropy(model(x), y)
        torch._foreach_add_(params, noise, alpha=1e-3)
        slope = (above - below) / 2e-3
        torch._foreach_sub_(params, torch._foreach_mul(noise, slope * 1e-3))
        return above

    return step


def _two_task_gradients(model, x, y, x_old, y_old):
    params = list(model.parameters())
    loss = functional.cross_entropy(model(x), y)
    old = functional.cross_entropy(model(x_old), y_old)
    g = torch.cat([t.flatten() for t in torch.autograd.grad(loss, params)])
    reference = torch.cat([t.flatten() for t in torch.autograd.grad(old, params)])
    return params, loss.detach(), g, reference


def _descend(params, flat, rate=0.05):
    with torch.no_grad():
        parts = flat.split([p.numel() for p in params])
        for p, part in zip(params, parts, strict=True):
            p.sub_(part.view_as(p), alpha=rate)


def memories_constrain_by_a_branch(device):
    """A-GEM: a gradient that would raise the loss of the memory is projected."""
    model = _net(device)
    batches = (*_batch(device), *_batch(device))

    def step():
        params, loss, g, reference = _two_task_gradients(model, *batches)
        product = torch.dot(g, reference)
        if product < 0:  # guilty: asks the sign of a product
            g = g - product / torch.dot(reference, reference) * reference
        _descend(params, g)
        return loss

    return step


def memories_constrain_by_a_clamp(device):
    model = _net(device)
    batches = (*_batch(device), *_batch(device))

    def step():
        params, loss, g, reference = _two_task_gradients(model, *batches)
        violation = torch.dot(g, reference).clamp(max=0)
        _descend(params, g - violation / torch.dot(reference, reference) * reference)
        return loss

    return step


def averager(beta=0.9):
    """Of EnCodec's balancer."""
    totals: dict[str, torch.Tensor] = {}

    def update(metrics):
        for name, value in metrics.items():
            if name not in totals:
                totals[name] = value
            totals[name] = totals[name] * beta + value * (1 - beta)  # guilty: rebound
        return dict(totals)

    return update


def _balanced(device, average):
    model = _net(device, 12)
    head = nn.Linear(12, 12).to(device)
    opt = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.01)
    x, _ = _batch(device)

    def step():
        opt.zero_grad()
        output = model(x)
        losses = {"l1": (output - x).abs().mean(), "l2": (head(output) - x).square().mean()}
        grads = {}
        for name, loss in losses.items():
            (grads[name],) = torch.autograd.grad(loss, [output], retain_graph=True)
        norms = average({name: g.norm(dim=-1).mean() for name, g in grads.items()})
        combined = sum(g / (norms[name] + 1e-12) for name, g in grads.items())
        output.backward(combined)
        opt.step()
        return sum(losses.values()).detach()

    return step


def losses_balanced_by_averaged_norms(device):
    return _balanced(device, averager())


def losses_balanced_by_current_norms(device):
    return _balanced(device, dict)


def latest_weights_in_a_deque(device):
    """LAWA: the mean of the last snapshots is evaluated."""
    model, (x, y) = _net(device), _batch(device)
    averaged = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    snapshots: deque[list[torch.Tensor]] = deque(maxlen=4)

    def step():
        opt.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        opt.step()
        with torch.no_grad():
            snapshots.append([p.clone() for p in model.parameters()])  # guilty: no replay appends
            for target, *copies in zip(averaged.parameters(), *snapshots, strict=True):
                target.copy_(torch.stack(copies).mean(0))
            return functional.cross_entropy(averaged(x), y)

    return step


def latest_weights_in_a_ring(device):
    model, (x, y) = _net(device), _batch(device)
    averaged = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    rings = [p.detach().expand(4, *p.shape).clone() for p in model.parameters()]
    slot = torch.zeros(1, dtype=torch.int64, device=device)

    def step():
        opt.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        opt.step()
        with torch.no_grad():
            for ring, p, target in zip(
                rings, model.parameters(), averaged.parameters(), strict=True
            ):
                ring.index_copy_(0, slot, p[None])
                target.copy_(ring.mean(0))
            slot.add_(1).remainder_(4)
            return functional.cross_entropy(averaged(x), y)

    return step


class ColorJitter(nn.Module):
    """The order of the adjustments is drawn, as in torchvision."""

    def forward(self, image):
        strength = 0.6 + 0.8 * torch.rand(3, len(image), 1, 1, 1, device=image.device)
        for which in torch.randperm(3):  # guilty: the order of the capture
            if which == 0:
                image = image * strength[0]
            elif which == 1:
                mean = image.mean((1, 2, 3), keepdim=True)
                image = (image - mean) * strength[1] + mean
            else:
                gray = image.mean(1, keepdim=True)
                image = gray + (image - gray) * strength[2]
            image = image.clamp(0, 1)
        return image


def colors_jittered_in_a_drawn_order(device):
    net = nn.Sequential(ColorJitter(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    net = net.to(device)
    opt = torch.optim.SGD(net.parameters(), 0.05)
    images, y = torch.rand(8, 3, 8, 8, device=device), torch.randint(5, (8,), device=device)

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(net(images), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class RandomShifts(nn.Module):
    """DrQ-v2."""

    def __init__(self, pad=2):
        super().__init__()
        self.pad = pad

    def forward(self, x):
        n, _, h, w = x.shape
        assert h == w
        x = functional.pad(x, (self.pad,) * 4, "replicate")
        size = h + 2 * self.pad
        eps = 1.0 / size
        line = torch.linspace(-1.0 + eps, 1.0 - eps, size, device=x.device, dtype=x.dtype)[:h]
        line = line[None].repeat(h, 1)[..., None]
        grid = torch.cat([line, line.transpose(1, 0)], 2)[None].repeat(n, 1, 1, 1)
        shift = torch.randint(
            0, 2 * self.pad + 1, size=(n, 1, 1, 2), device=x.device, dtype=x.dtype
        )
        grid = grid + shift * 2.0 / size
        return functional.grid_sample(x, grid, padding_mode="zeros", align_corners=False)


def observations_shifted_at_random(device):
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    encoder, shifts = encoder.to(device), RandomShifts()
    opt = torch.optim.SGD(encoder.parameters(), 0.05)
    images, returns = torch.rand(8, 3, 8, 8, device=device), torch.randn(8, 1, device=device)

    def step():
        opt.zero_grad()
        loss = (encoder(shifts(images)) - returns).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class ShakeShake(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        alpha = torch.rand(len(a), 1, device=a.device)
        return alpha * a + (1 - alpha) * b

    @staticmethod
    def backward(ctx, grad):
        beta = random.random()  # guilty: drawn on the host
        return beta * grad, (1 - beta) * grad


class ShakeShakeOnDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        alpha = torch.rand(len(a), 1, device=a.device)
        return alpha * a + (1 - alpha) * b

    @staticmethod
    def backward(ctx, grad):
        beta = torch.rand(len(grad), 1, device=grad.device)
        return beta * grad, (1 - beta) * grad


def _shaken(device, function):
    left, right, head = _net(device, 12), _net(device, 12), nn.Linear(12, 5).to(device)
    x, y = _batch(device)
    modules = nn.ModuleList([left, right, head])
    opt = torch.optim.SGD(modules.parameters(), 0.05)

    def step():
        opt.zero_grad()
        hidden = x + function.apply(left(x), right(x))
        loss = functional.cross_entropy(head(hidden), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def branches_shaken_by_the_host(device):
    return _shaken(device, ShakeShake)


def branches_shaken_by_the_device(device):
    return _shaken(device, ShakeShakeOnDevice)


def _tasks(device, combine):
    trunk = _net(device, 16)
    heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(3)).to(device)
    x, _ = _batch(device)
    target = torch.randn(3, 16, 1, device=device)
    opt = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], 0.01)

    def step():
        opt.zero_grad()
        shared = trunk(x)
        losses = [(h(shared) - t).square().mean() for h, t in zip(heads, target, strict=True)]
        grads = [torch.autograd.grad(v, shared, retain_graph=True)[0].flatten() for v in losses]
        weights = combine(torch.stack(grads))
        sum(w * v for w, v in zip(weights, losses, strict=True)).backward()
        opt.step()
        return torch.stack(losses).detach()

    return step


def tasks_weighed_impartially(device):
    """IMTL-G: equal projections on all gradients, in closed form."""

    def combine(grads):
        units = functional.normalize(grads, dim=1)
        d, u = grads[0] - grads[1:], units[0] - units[1:]
        inner = torch.linalg.inv(d @ u.T)  # guilty: its error code is read
        alpha = grads[0] @ u.T @ inner
        return torch.cat([1 - alpha.sum(0, keepdim=True), alpha])

    return _tasks(device, combine)


def tasks_weighed_by_frank_wolfe(device):
    """MGDA with a fixed number of iterations."""

    def combine(grads):
        gram = grads @ grads.T
        weights = torch.full((3,), 1 / 3, device=grads.device)
        for i in range(8):
            vertex = functional.one_hot((gram @ weights).argmin(), 3).to(gram.dtype)
            weights = weights + 2 / (i + 2) * (vertex - weights)
        return weights

    return _tasks(device, combine)


class Competence:
    """Platanios: batches come from the easiest part of the data, which grows."""

    def __init__(self, size, total=2000, start=0.1):
        self.size, self.total, self.start, self.t = size, total, start, 0

    def available(self):
        self.t += 1  # guilty: no replay counts
        share = math.sqrt(self.t * (1 - self.start**2) / self.total + self.start**2)
        return int(min(1.0, share) * self.size)


def rows_by_growing_competence(device):
    model, competence = _net(device), Competence(4096)
    data, labels = _batch(device, 4096)
    opt = torch.optim.SGD(model.parameters(), 0.05)

    def step():
        opt.zero_grad()
        rows = torch.randint(  # guilty: the bound of the capture
            competence.available(), (16,), device=data.device
        )
        loss = functional.cross_entropy(model(data[rows]), labels[rows])
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def rows_by_competence_on_the_device(device):
    model = _net(device)
    data, labels = _batch(device, 4096)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    t = torch.zeros((), device=device)

    def step():
        opt.zero_grad()
        t.add_(1)
        share = (t * (0.99 / 2000) + 0.01).sqrt().clamp(max=1)
        rows = (torch.rand(16, device=data.device) * share * len(data)).long()
        rows.clamp_(max=len(data) - 1)
        loss = functional.cross_entropy(model(data[rows]), labels[rows])
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class BatchRenorm(nn.Module):
    def __init__(self, width, momentum=0.01):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        self.register_buffer("steps", torch.tensor(0, dtype=torch.int64))

    def limits(self):
        if self.steps < 1000:  # guilty: asks a counter of the device
            return 1.0, 0.0
        return 3.0, 5.0

    def forward(self, x):
        mean, std = x.mean(0), x.std(0, unbiased=False) + 1e-3
        r_max, d_max = self.limits()
        r = (std.detach() / self.std).clamp(1 / r_max, r_max)
        d = ((mean.detach() - self.mean) / self.std).clamp(-d_max, d_max)
        with torch.no_grad():
            self.mean.lerp_(mean, self.momentum)
            self.std.lerp_(std, self.momentum)
            self.steps += 1
        return (x - mean) / std * r + d


class BatchRenormByRamps(BatchRenorm):
    def limits(self):
        r_max = (2 / 35000 * self.steps + 25 / 35).clamp_(1.0, 3.0)
        d_max = (5 / 20000 * self.steps - 25 / 20).clamp_(0.0, 5.0)
        return r_max, d_max

    def forward(self, x):
        mean, std = x.mean(0), x.std(0, unbiased=False) + 1e-3
        r_max, d_max = self.limits()
        r = torch.minimum(torch.maximum(std.detach() / self.std, 1 / r_max), r_max)
        d = (mean.detach() - self.mean) / self.std
        d = torch.clamp(d, -d_max, d_max)
        with torch.no_grad():
            self.mean.lerp_(mean, self.momentum)
            self.std.lerp_(std, self.momentum)
            self.steps += 1
        return (x - mean) / std * r + d


def _renormed(device, norm):
    model = nn.Sequential(nn.Linear(12, 16), norm(16), nn.ReLU(), nn.Linear(16, 5)).to(device)
    x, y = _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def renorm_asks_for_its_steps(device):
    return _renormed(device, BatchRenorm)


def renorm_with_ramped_limits(device):
    return _renormed(device, BatchRenormByRamps)


class FreezeOut(nn.Module):
    """Layers are frozen one after another, each at its own iteration."""

    def __init__(self, layers, total=100):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for i, layer in enumerate(self.layers):
            layer.last = total * (i + 1) // len(self.layers)
        self.iteration = 0

    def forward(self, x):
        self.iteration += 1
        for layer in self.layers:
            x = torch.relu(layer(x))
            if self.iteration > layer.last:  # guilty: the branch of the capture
                x = x.detach()
        return x


def layers_are_frozen_in_turn(device):
    body = FreezeOut([nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 16)]).to(device)
    head, (x, y) = nn.Linear(16, 5).to(device), _batch(device)
    opt = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.05)

    def step():
        opt.zero_grad(set_to_none=False)
        loss = functional.cross_entropy(head(body(x)), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def adapter_is_merged_now_and_then(device):
    """ReLoRA: the low-rank product moves into the weight and begins anew."""
    weight = torch.randn(5, 12, device=device)
    down = nn.Parameter(torch.randn(4, 12, device=device) * 0.1)
    up = nn.Parameter(torch.zeros(5, 4, device=device))
    opt = torch.optim.AdamW([down, up], lr=1e-2, capturable=True)
    x, y = _batch(device)
    merges = itertools.cycle([False] * 24 + [True])

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(x @ (weight + up @ down).T, y)
        loss.backward()
        opt.step()
        if next(merges):  # guilty: the branch of the capture
            with torch.no_grad():
                weight.add_(up @ down)
                up.zero_()
                nn.init.kaiming_uniform_(down)
        return loss.detach()

    return step


def _requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad = flag


def adversaries_thaw_in_turn(device):
    """The usual toggles of a GAN come back to where they were."""
    generator, critic = _net(device, 12), _net(device, 1)
    opt_g = torch.optim.SGD(generator.parameters(), 0.01)
    opt_d = torch.optim.SGD(critic.parameters(), 0.01)
    real, _ = _batch(device)

    def step():
        _requires_grad(generator, False)
        _requires_grad(critic, True)
        fake = generator(torch.randn_like(real))
        d_loss = (
            functional.softplus(critic(fake)).mean() + functional.softplus(-critic(real)).mean()
        )
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        _requires_grad(generator, True)
        _requires_grad(critic, False)
        g_loss = functional.softplus(-critic(generator(torch.randn_like(real)))).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        return d_loss.detach(), g_loss.detach()

    return step


def virtual_adversary_without_statistics(device):
    """VAT: batch statistics are off for the perturbed passes, by an attribute flipped twice."""
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    model, (x, y) = model.to(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)

    def flip(m):
        if hasattr(m, "track_running_stats"):
            m.track_running_stats ^= True

    def divergence(p, perturbed):
        return functional.kl_div(model(perturbed).log_softmax(1), p, reduction="batchmean")

    def step():
        opt.zero_grad()
        logits = model(x)
        p = logits.detach().softmax(1)
        model.apply(flip)
        d = functional.normalize(torch.randn_like(x), dim=1).requires_grad_()
        (g,) = torch.autograd.grad(divergence(p, x + 10 * d), [d])
        local = divergence(p, x + functional.normalize(g, dim=1))
        model.apply(flip)
        loss = functional.cross_entropy(logits, y) + local
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def weights_rounded_stochastically(device):
    """Weights in bfloat16, rounded up or down by noise in the cut-off bits."""
    model = _net(device).to(torch.bfloat16)
    x, y = _batch(device)
    x = x.to(torch.bfloat16)

    def rounded(value):
        bits = value.view(torch.int32)
        noise = torch.randint_like(bits, 1 << 16)
        return bits.add(noise).bitwise_and_(-(1 << 16)).view(torch.float32).to(torch.bfloat16)

    def step():
        loss = functional.cross_entropy(model(x).float(), y)
        params = list(model.parameters())
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.copy_(rounded(p.float() - 0.01 * g.float()))
        return loss.detach()

    return step


def importance_of_weights_along_the_path(device):
    """Synaptic intelligence."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    params = list(model.parameters())
    anchors = [p.detach().clone() for p in params]
    omegas = [torch.zeros_like(p) for p in params]
    paths = [torch.zeros_like(p) for p in params]

    def step():
        opt.zero_grad()
        penalty = sum(
            (omega * (p - anchor).square()).sum()
            for omega, p, anchor in zip(omegas, params, anchors, strict=True)
        )
        loss = functional.cross_entropy(model(x), y) + 0.1 * penalty
        loss.backward()
        before = [p.detach().clone() for p in params]
        opt.step()
        with torch.no_grad():
            for p, old, path, omega, anchor in zip(
                params, before, paths, omegas, anchors, strict=True
            ):
                path.addcmul_(p.grad, p - old, value=-1)
                omega.copy_((path / ((p - anchor).square() + 1e-3)).relu())
        return loss.detach()

    return step

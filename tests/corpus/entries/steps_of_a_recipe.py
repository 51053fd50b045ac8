"""Training steps as recipes write them: losses, optimizers by hand, averages, penalties."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint


def _net(device, norm=False):
    torch.manual_seed(0)
    middle = nn.LayerNorm(16) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(8, 16), middle, nn.GELU(), nn.Linear(16, 4)).to(device)


def _batch(device, n=8):
    return torch.randn(n, 8, device=device), torch.randint(4, (n,), device=device)


@dataclass
class _Batch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "train"


def _focal(logits, y, gamma=2.0, smoothing=0.1):
    log_p = logits.log_softmax(-1)
    nll = -log_p.gather(1, y[:, None]).squeeze(1)
    weight = (1 - torch.exp(-nll.detach())) ** gamma
    return (weight * ((1 - smoothing) * nll - smoothing * log_p.mean(1))).mean()


# A batch of a dataclass, a loss of one's own, and metrics that stay on the device.
def metrics_stay_on_the_device(device):
    model, batch = _net(device), _Batch(*_batch(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def training_step(batch):
        logits = model(batch.x)
        loss = _focal(logits, batch.y)
        with torch.no_grad():
            accuracy = (logits.argmax(-1) == batch.y).float().mean()
        return loss, {f"{batch.name}/loss": loss.detach(), f"{batch.name}/accuracy": accuracy}

    def step():
        optimizer.zero_grad()
        loss, metrics = training_step(batch)
        loss.backward()
        metrics["grad_norm"] = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return metrics

    return step


# Four small batches in one step.
def accumulates_within_the_step(device):
    model, (x, y) = _net(device, norm=True), _batch(device, 16)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=(0.9, 0.95),
        capturable=True,
    )

    def step():
        total = torch.zeros((), device=x.device)
        for xs, ys in zip(x.split(4), y.split(4), strict=True):
            loss = functional.cross_entropy(model(xs), ys) / 4
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


# A copy of the model follows in place, its buffers too.
def average_follows_in_place(device):
    model, (x, y) = _net(device), _batch(device)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
            for a, b in zip(average.buffers(), model.buffers(), strict=True):
                a.copy_(b)
            drift = functional.kl_div(
                average(x).log_softmax(-1), model(x).softmax(-1), reduction="sum"
            )
        return loss, drift

    return step


class _Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                m, (b1, b2) = state["exp_avg"], group["betas"]
                p.add_((m * b1 + p.grad * (1 - b1)).sign_(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def sign_of_the_momentum(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = _Lion(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


class _Sharpness(torch.optim.Optimizer):
    """Goes up by the gradient, takes the gradient there, and comes back."""

    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.norm(torch.stack([g.norm(p=2) for g in grads]), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.copy_(self.state[p]["old_p"])
        self.base.step()
        self.zero_grad()


def sharpness_aware_step(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = _Sharpness(model.parameters(), torch.optim.SGD, lr=0.1)

    def step():
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        functional.cross_entropy(model(x), y).backward()
        optimizer.second_step()
        return loss

    return step


class _Blocks(nn.Module):
    def __init__(self, keep_rng):
        super().__init__()
        self.keep_rng = keep_rng
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
            for _ in range(3)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            if self.keep_rng:
                x = x + checkpoint(block, x, use_reentrant=False)
            else:
                x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return self.head(x)


# The random state is saved and restored, which PyTorch permits in a capture from 2.10 on.
def checkpoints_that_keep_the_random_state(device):
    model, (x, y) = _Blocks(keep_rng=True).to(device), _batch(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# No block draws numbers, so the random state need not be kept.
def checkpoints_without_random_state(device):
    model, (x, y) = _Blocks(keep_rng=False).to(device), _batch(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


class _LearnedStep(torch.autograd.Function):
    """Quantization with a learned step; the limits are numbers."""

    @staticmethod
    def forward(ctx, x, scale, low, high):
        ctx.save_for_backward(x, scale)
        ctx.limits = low, high, 1.0 / math.sqrt(x.numel() * high)
        return (x / scale).clamp(low, high).round() * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        low, high, g = ctx.limits
        q = x / scale
        small, big = q < low, q > high
        middle = ~(small | big)
        d_scale = small * low + big * high + middle * (q.round() - q)
        d_x = grad * middle if ctx.needs_input_grad[0] else None
        return d_x, (d_scale * grad).sum().reshape(scale.shape) * g, None, None


class _QuantLinear(nn.Linear):
    def __init__(self, *args, bits=4):
        super().__init__(*args)
        self.limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.step_size = nn.Parameter(2 * self.weight.detach().abs().mean() / self.limits[1] ** 0.5)

    def forward(self, x):
        return functional.linear(
            x, _LearnedStep.apply(self.weight, self.step_size, *self.limits), self.bias
        )


def learned_step_of_quantization(device):
    model = nn.Sequential(_QuantLinear(8, 16), nn.ReLU(), _QuantLinear(16, 4)).to(device)
    optimizer, (x, y) = torch.optim.Adam(model.parameters(), capturable=True), _batch(device)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# The parameters of five models as one stack, mapped over.
def ensemble_by_functions(device):
    models = [_net(device) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x, y = _batch(device)

    def loss_of(params, buffers, x, y):
        return functional.cross_entropy(
            torch.func.functional_call(base, (params, buffers), (x,)), y
        )

    def step():
        grads, losses = torch.func.vmap(
            torch.func.grad_and_value(loss_of), in_dims=(0, 0, None, None)
        )(params, buffers, x, y)
        with torch.no_grad():
            for name, p in params.items():
                p.sub_(grads[name], alpha=0.1)
        return losses

    return step


# The inner steps make new weights, and the outer gradient goes through them.
def meta_learning_through_inner_steps(device):
    model = _net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    support, query = _batch(device), _batch(device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        fast = dict(model.named_parameters())
        for _ in range(2):
            out = torch.func.functional_call(model, fast, (support[0],))
            loss = functional.cross_entropy(out, support[1])
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {k: w - 0.1 * g for (k, w), g in zip(fast.items(), grads, strict=True)}
        loss = functional.cross_entropy(
            torch.func.functional_call(model, fast, (query[0],)), query[1]
        )
        loss.backward()
        optimizer.step()
        return loss

    return step


# A critic whose gradient at random mixtures is held at one, and whose weights are normalised.
def critic_with_a_gradient_penalty(device):
    critic = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(8, 16)), nn.LeakyReLU(0.2), nn.Linear(16, 1)
    ).to(device)
    generator = nn.Linear(4, 8).to(device)
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3, capturable=True)
    real = torch.randn(8, 8, device=device)

    def step():
        fake = generator(torch.randn(8, 4, device=device)).detach()
        eps = torch.rand(8, 1, device=device)
        mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
        scores = critic(mixed)
        (grad,) = torch.autograd.grad(
            scores, mixed, torch.ones_like(scores), create_graph=True, retain_graph=True
        )
        penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), penalty.detach()

    return step


class _Trainer:
    """Polynomial decay of the learning rate by a counter of its own."""

    def __init__(self, model, device, base=0.1, total=1000):
        self.model, self.base, self.total, self.it = model, base, total, 0
        self.x, self.y = _batch(device)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=base)

    def adjust(self):
        lr = self.base * (1 - self.it / self.total) ** 0.9  # guilty: the rate of the capture
        for group in self.optimizer.param_groups:
            group["lr"] = lr  # guilty: the rate of the capture
        self.it += 1  # guilty: no replay counts

    def __call__(self):
        self.adjust()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()  # guilty: the rate of the capture
        return loss


def trainer_that_decays_its_rate(device):
    return _Trainer(_net(device), device).__call__


class _Average(nn.Module):
    """The decay begins low and grows with the number of updates."""

    def __init__(self, model, decay=0.9999):
        super().__init__()
        self.module, self.decay, self.updates = copy.deepcopy(model).eval(), decay, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1  # guilty: no replay counts
        d = self.decay * (1 - math.exp(-self.updates / 2000))  # guilty: the decay of the capture
        source = model.state_dict()
        for name, value in self.module.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(d).add_(source[name].detach(), alpha=1 - d)  # guilty: of the capture


def average_with_a_warm_up(device):
    model, (x, y) = _net(device), _batch(device)
    average = _Average(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update(model)
        return loss

    return step


# Accumulates over calls, and every fourth call updates.
def accumulates_over_calls(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iteration = 0

    def step():
        nonlocal iteration
        loss = functional.cross_entropy(model(x), y) / 4
        loss.backward()
        iteration += 1  # guilty: no replay counts
        if iteration % 4 == 0:  # guilty: the branch of the capture
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    return step


# A loss that is not finite ends the step.
def skips_losses_that_are_not_finite(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        if not torch.isfinite(loss):  # guilty: the truth of a tensor
            return loss
        loss.backward()
        optimizer.step()
        return loss

    return step


def clipping_refuses_infinite_norms(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(
            model.parameters(), 1.0, error_if_nonfinite=True
        )  # guilty: asks whether the norm is finite
        optimizer.step()
        return loss

    return step


class _Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


# The meter takes the number of the loss.
def meter_of_the_loss(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer, meter = torch.optim.SGD(model.parameters(), lr=0.1), _Meter()

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), x.size(0))  # guilty: .item()
        return loss

    return step


class _DynamicWeights:
    """Weighs two tasks by how fast their losses fall: the losses of the call before."""

    def __init__(self, temperature=2.0):
        self.before, self.temperature = None, temperature

    def __call__(self, losses):
        losses = torch.stack(losses)
        if self.before is None:
            weights = torch.ones_like(losses)
        else:
            ratio = losses.detach() / self.before  # guilty: the losses before the capture
            weights = len(losses) * torch.softmax(ratio / self.temperature, 0)
        self.before = losses.detach()  # guilty: another tensor, which no replay reads
        return (weights * losses).sum()


def tasks_weighed_by_the_last_losses(device):
    model, (x, y) = _net(device), _batch(device)
    combine = _DynamicWeights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        logits = model(x)
        loss = combine([functional.cross_entropy(logits, y), logits.square().mean()])
        loss.backward()
        optimizer.step()
        return loss

    return step


class _HandAdam:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        self.params, self.lr, self.betas, self.eps, self.t = list(params), lr, betas, eps, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1  # guilty: no replay counts
        b1, b2 = self.betas
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            m_hat = m / (1 - b1**self.t)  # guilty: the correction of the capture
            v_hat = v / (1 - b2**self.t)  # guilty: the correction of the capture
            p.sub_(self.lr * m_hat / (v_hat.sqrt() + self.eps))


def adam_by_hand(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = _HandAdam(model.parameters())

    def step():
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# The average counts its updates in a tensor, and asks whether it is the first.
def average_of_weights_by_torch(device):
    model, (x, y) = _net(device), _batch(device)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)  # guilty: reads how many updates there were
        return loss

    return step

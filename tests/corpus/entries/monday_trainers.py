"""What a team that tunes, distills and aligns models puts into one step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional


def _mlp(device, inputs=8, hidden=16, outputs=8):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs)).to(
        device
    )


def _log_probs(model, states, tokens):
    return model(states).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1).sum(-1)


class _Preferences:
    """DPO whose beta follows how far the policy has moved."""

    def __init__(self, device):
        self.policy = _mlp(device)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.beta = 0.1

    def __call__(self, states, chosen, rejected):
        def margin(model):
            return _log_probs(model, states, chosen) - _log_probs(model, states, rejected)

        with torch.no_grad():
            base = margin(self.reference)
        gap = margin(self.policy) - base
        loss = -functional.logsigmoid(self.beta * gap).mean()
        shift = float(gap.detach().abs().mean())  # guilty: read by the host
        self.beta = min(0.5, max(0.05, self.beta * (1.0 + 0.1 * (shift - 1.0))))
        return loss


def dpo_beta_follows_the_margin(device):
    states = torch.randn(4, 5, 8, device=device)
    tokens = [torch.randint(8, (4, 5), device=device) for _ in range(2)]
    return _Preferences(device), (states, *tokens)


class _AnchoredPreferences(nn.Module):
    """DPO with label smoothing, a length-normalized margin and an anchor on the chosen answer."""

    def __init__(self, device, beta=0.1, smoothing=0.05):
        super().__init__()
        self.policy = _mlp(device)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False).eval()
        self.beta, self.smoothing = beta, smoothing
        self.register_buffer("moving_margin", torch.zeros((), device=device))

    def forward(self, states, chosen, rejected, lengths):
        steps = torch.arange(states.shape[1], device=states.device)
        mask = (steps < lengths.unsqueeze(1)).to(states.dtype)

        def score(model, tokens):
            each = model(states).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
            return (each * mask).sum(-1) / mask.sum(-1).clamp(min=1)

        with torch.no_grad():
            base = score(self.reference, chosen) - score(self.reference, rejected)
        wins = score(self.policy, chosen)
        gap = self.beta * (wins - score(self.policy, rejected) - base)
        self.moving_margin.lerp_(gap.detach().mean(), 0.1)
        loss = -(1 - self.smoothing) * functional.logsigmoid(gap)
        loss = loss - self.smoothing * functional.logsigmoid(-gap)
        return loss.mean() - 0.01 * wins.mean()


def dpo_with_smoothed_labels(device):
    states = torch.randn(4, 5, 8, device=device)
    tokens = [torch.randint(8, (4, 5), device=device) for _ in range(2)]
    lengths = torch.tensor([5, 2, 3, 4], device=device)
    return _AnchoredPreferences(device), (states, *tokens, lengths)


@dataclass
class _Look:
    """LookSAM: the ascent direction is computed on every other step and reused on the next."""

    model: nn.Module
    rho: float = 0.05
    steps: int = 0
    ascent: dict = field(default_factory=dict)

    def step(self, x, y):
        params = dict(self.model.named_parameters())
        loss = functional.mse_loss(self.model(x), y)
        grads = torch.autograd.grad(loss, list(params.values()))
        if self.steps % 2 == 0:  # guilty: every replay does what the captured step did
            norm = torch.stack([g.norm() for g in grads]).norm() + 1e-12
            with torch.no_grad():
                for p, g in zip(params.values(), grads, strict=True):
                    p.add_(g, alpha=1.0).sub_(g * (1.0 - self.rho / norm))
            sharp = torch.autograd.grad(
                functional.mse_loss(self.model(x), y), list(params.values())
            )
            with torch.no_grad():
                for p, g in zip(params.values(), grads, strict=True):
                    p.sub_(g * (self.rho / norm))
            for name, s, g in zip(params, sharp, grads, strict=True):
                self.ascent[name].copy_(s - g)
        self.steps += 1  # guilty: as above
        with torch.no_grad():
            for (name, p), g in zip(params.items(), grads, strict=True):
                p.sub_(g + self.ascent[name], alpha=0.05)
        return loss.detach()


def sharpness_on_every_other_step(device):
    model = _mlp(device)
    look = _Look(model, ascent={n: torch.zeros_like(p) for n, p in model.named_parameters()})
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)
    return lambda: look.step(x, y)


def sharpness_by_a_device_parity(device):
    """The same with the parity on the device: both branches are computed and one is taken."""
    model = _mlp(device)
    params = list(model.parameters())
    ascent = [torch.zeros_like(p) for p in params]
    steps = torch.zeros((), dtype=torch.int64, device=device)
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)

    def step():
        loss = functional.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, params)
        scale = 0.05 / (torch.stack(torch._foreach_norm(grads)).norm() + 1e-12)
        moves = [g * scale for g in grads]
        with torch.no_grad():
            torch._foreach_add_(params, moves)
        sharp = torch.autograd.grad(functional.mse_loss(model(x), y), params)
        fresh = steps.remainder(2) == 0
        with torch.no_grad():
            torch._foreach_sub_(params, moves)
            for a, s, g in zip(ascent, sharp, grads, strict=True):
                a.copy_(torch.where(fresh, s - g, a))
            for p, a, g in zip(params, ascent, grads, strict=True):
                p.sub_(g + a, alpha=0.05)
        steps.add_(1)
        return loss.detach()

    return step


class _Projected:
    """GaLore: Adam in a subspace that is found anew every twenty steps."""

    def __init__(self, weight, rank=2, every=20):
        self.weight, self.rank, self.every, self.count = weight, rank, every, 0
        self.basis = torch.zeros(weight.shape[0], rank, device=weight.device)
        self.first = torch.zeros(rank, weight.shape[1], device=weight.device)
        self.second = torch.zeros_like(self.first)

    @torch.no_grad()
    def apply(self, grad):
        if self.count % self.every == 0:  # guilty: never refreshed in a replay
            sketch = grad @ (grad.t() @ grad[:, : self.rank])
            self.basis.copy_(sketch / (sketch.norm(dim=0, keepdim=True) + 1e-9))
        self.count += 1  # guilty: as above
        low = self.basis.t() @ grad
        self.first.lerp_(low, 0.1)
        self.second.lerp_(low.square(), 0.01)
        self.weight.sub_(self.basis @ (self.first / (self.second.sqrt() + 1e-8)), alpha=1e-2)


def subspace_is_found_again(device):
    layer = nn.Linear(8, 8, bias=False).to(device)
    optimizer = _Projected(layer.weight)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, 8, device=device)

    def step():
        loss = functional.mse_loss(layer(x), y)
        (grad,) = torch.autograd.grad(loss, [layer.weight])
        optimizer.apply(grad)
        return loss.detach()

    return step


def clipped_by_the_norms_of_before(device):
    """AutoClip: the threshold is a quantile of the last eight norms."""
    model = _mlp(device)
    norms = [torch.ones((), device=device)]
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)

    def step():
        grads = torch.autograd.grad(
            functional.cross_entropy(model(x), y.softmax(-1)), list(model.parameters())
        )
        total = torch.stack(torch._foreach_norm(grads)).norm()
        norms.append(total)  # guilty: a list of the host, which no replay makes longer
        threshold = torch.stack(norms[-8:]).quantile(0.25)  # guilty: as long as in the capture
        factor = (threshold / (total + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g * factor, alpha=0.1)
        return total, threshold

    return step


def clipped_by_a_ring_of_norms(device):
    model = _mlp(device)
    ring = torch.ones(8, device=device)
    slot = torch.zeros(1, dtype=torch.int64, device=device)
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)

    def step():
        grads = torch.autograd.grad(
            functional.cross_entropy(model(x), y.softmax(-1)), list(model.parameters())
        )
        total = torch.stack(torch._foreach_norm(grads)).norm()
        ring.scatter_(0, slot, total.view(1))
        slot.add_(1).remainder_(ring.numel())
        threshold = ring.sort().values[2]
        factor = (threshold / (total + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g * factor, alpha=0.1)
        return total, threshold

    return step


class _Thaw(nn.Module):
    """Gradual unfreezing: another block is trained every few steps, from the top."""

    def __init__(self, width=8, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.trained = 0

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            depth_from_top = len(self.blocks) - 1 - i
            active = depth_from_top * 4 <= self.trained  # guilty: the blocks of the capture
            out = block(x) if active else block(x).detach()  # guilty: as above
            x = x + out.tanh()
        self.trained += 1  # guilty: as above
        return x


def blocks_thaw_from_the_top(device):
    model = _Thaw().to(device)
    return model, (torch.randn(4, 8, device=device),)


@dataclass
class _TaskWeights:
    last: torch.Tensor
    before: torch.Tensor
    temperature: float = 2.0

    def update(self, losses):
        self.before, self.last = self.last, losses  # guilty: the losses change their names

    @property
    def values(self):
        ratio = self.last / self.before  # guilty: as above
        return ratio.numel() * torch.softmax(ratio / self.temperature, 0)


def dynamic_weights_of_three_tasks(device):
    trunk = nn.Linear(8, 8).to(device)
    heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(3)).to(device)
    weights = _TaskWeights(torch.ones(3, device=device), torch.ones(3, device=device))

    def step(x, target):
        hidden = trunk(x).relu()
        losses = torch.stack([functional.mse_loss(h(hidden), target) for h in heads])
        total = (weights.values * losses).sum()
        weights.update(losses.detach().clone())
        return total

    return step, (torch.randn(4, 8, device=device), torch.randn(4, 2, device=device))


class _Episodic:
    """A-GEM: the gradient of the step before guards against forgetting."""

    def __init__(self, model):
        self.model = model
        self.memory = {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    def guard(self, grads):
        dot = sum((grads[n] * self.memory[n]).sum() for n in grads)  # guilty: as below
        size = sum(m.square().sum() for m in self.memory.values()) + 1e-8
        share = (dot / size).clamp(max=0.0)
        return {n: g - share * self.memory[n] for n, g in grads.items()}

    def step(self, x, y):
        loss = functional.mse_loss(self.model(x), y)
        named = dict(self.model.named_parameters())
        grads = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        kept = self.guard(grads)
        with torch.no_grad():
            for name, p in named.items():
                p.sub_(kept[name], alpha=0.1)
        self.remember(grads)
        return loss.detach()

    def remember(self, grads):
        self.memory = {n: g.clone() for n, g in grads.items()}  # guilty: other tensors


def gradient_memory_is_a_new_dict(device):
    episodic = _Episodic(_mlp(device))
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)
    return lambda: episodic.step(x, y)


class _EpisodicInPlace(_Episodic):
    def remember(self, grads):
        for name, kept in self.memory.items():
            kept.copy_(grads[name])


def gradient_memory_in_place(device):
    episodic = _EpisodicInPlace(_mlp(device))
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)
    return lambda: episodic.step(x, y)


def _ramp(low, high, steps):
    """A coroutine: it is sent nothing and answers with the next coefficient."""
    value = low
    while True:
        yield value
        value = min(high, value + (high - low) / steps)


def distillation_weight_comes_from_a_coroutine(device):
    teacher, student = _mlp(device).requires_grad_(False), _mlp(device)
    ramp = _ramp(0.0, 1.0, 50)

    def loss_of(x, labels):
        with torch.no_grad():
            soft = teacher(x).softmax(-1)
        logits = student(x)
        share = ramp.send(None)  # guilty: a number of the host
        hard = functional.cross_entropy(logits, labels)
        distilled = functional.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")
        return torch.lerp(hard, distilled, share)  # guilty: as above

    return loss_of, (torch.randn(4, 8, device=device), torch.randint(8, (4,), device=device))


def distillation_of_hidden_states(device):
    """Hooks collect the hidden states of teacher and student; each step starts with none."""
    teacher, student = _mlp(device).requires_grad_(False), _mlp(device)
    seen = {"teacher": [], "student": []}

    def collect(name):
        return lambda module, inputs, output: seen[name].append(output)

    teacher[1].register_forward_hook(collect("teacher"))
    student[1].register_forward_hook(collect("student"))
    project = nn.Linear(16, 16, bias=False).to(device)

    def step(x):
        for states in seen.values():
            states.clear()
        with torch.no_grad():
            soft = teacher(x).div(2.0).softmax(-1)
        logits = student(x)
        loss = functional.kl_div(logits.div(2.0).log_softmax(-1), soft, reduction="batchmean")
        pairs = zip(seen["student"], seen["teacher"], strict=True)
        return 4.0 * loss + sum(functional.mse_loss(project(s), t) for s, t in pairs)

    return step, (torch.randn(4, 8, device=device),)


def compensated_updates_in_half_precision(device):
    """Weights in bfloat16 with Kahan compensation, so that small updates are not lost."""
    layer = nn.Linear(8, 8).to(device, torch.bfloat16)
    lost = {p: torch.zeros_like(p) for p in layer.parameters()}
    x = torch.randn(4, 8, device=device, dtype=torch.bfloat16)
    y = torch.randn(4, 8, device=device, dtype=torch.bfloat16)

    def step():
        layer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(layer(x), y)
        loss.backward()
        with torch.no_grad():
            for p, c in lost.items():
                update = p.grad.mul(-1e-3).add_(c)
                after = p + update
                c.copy_(update - (after - p))
                p.copy_(after)
        return loss.detach()

    return step


def noise_prediction_weighted_by_its_ratio(device):
    """Diffusion with min-SNR weights; the time steps are drawn on the device."""
    steps = 50
    alphas = torch.linspace(1e-4, 2e-2, steps, device=device).neg().add(1).cumprod(0)
    ratio = alphas / (1 - alphas)
    weights = ratio.clamp(max=5.0) / ratio
    model = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8)).to(device)

    def loss_of(clean):
        t = torch.randint(steps, (clean.shape[0],), device=clean.device)
        noise = torch.randn_like(clean)
        keep = alphas[t].unsqueeze(1)
        noisy = keep.sqrt() * clean + (1 - keep).sqrt() * noise
        guess = model(torch.cat([noisy, t.unsqueeze(1) / steps], dim=1))
        return (weights[t] * (guess - noise).square().mean(1)).mean()

    return loss_of, (torch.randn(6, 8, device=device),)

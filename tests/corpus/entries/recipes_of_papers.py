"""What the code of well-known papers does in its training step and its forward."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import types
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def _encoder(device, out=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, out)).to(device)


def _views(device):
    return torch.randn(6, 12, device=device), torch.randn(6, 12, device=device)


class _MomentumContrast(nn.Module):
    """A queue of keys; its pointer is a buffer, which is read in each step."""

    def __init__(self, encoder, k=24, m=0.99, temperature=0.07):
        super().__init__()
        self.q, self.k = encoder, copy.deepcopy(encoder).requires_grad_(False)
        self.size, self.m, self.temperature = k, m, temperature
        self.register_buffer("queue", functional.normalize(torch.randn(8, k), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        n = keys.shape[0]
        ptr = int(self.queue_ptr)  # guilty: reads the pointer of the device
        self.queue[:, ptr : ptr + n] = keys.T
        self.queue_ptr[0] = (ptr + n) % self.size

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.q.parameters(), self.k.parameters(), strict=True):
            k.data.mul_(self.m).add_(q.data, alpha=1 - self.m)

    def forward(self, x, y):
        q = functional.normalize(self.q(x), dim=1)
        with torch.no_grad():
            self.follow()
            k = functional.normalize(self.k(y), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1)
        target = torch.zeros(len(q), dtype=torch.long, device=q.device)
        loss = functional.cross_entropy(logits / self.temperature, target)
        self.enqueue(k)
        return loss


def contrast_with_a_queue(device):
    model = _MomentumContrast(_encoder("cpu")).to(device)
    return model, _views(device)


# The averages of the key encoder are bound anew, so no replay reads them.
def momentum_encoder_bound_anew(device):
    online = _encoder(device)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    x, y = _views(device)

    @torch.no_grad()
    def follow(m=0.99):
        for q, k in zip(online.parameters(), target.parameters(), strict=True):
            k.data = k.data * m + q.data * (1.0 - m)  # guilty: another tensor in each step

    def step():
        loss = 2 - 2 * functional.cosine_similarity(online(x), target(y).detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow()
        return loss

    return step


# The same in place.
def momentum_encoder_in_place(device):
    online = _encoder(device)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    x, y = _views(device)

    def step():
        loss = 2 - 2 * functional.cosine_similarity(online(x), target(y).detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for q, k in zip(online.parameters(), target.parameters(), strict=True):
            k.data.mul_(0.99).add_((1 - 0.99) * q.detach().data)
        return loss

    return step


class _SelfDistillation(nn.Module):
    def __init__(self, out=8, warmup=0.04, momentum=0.9):
        super().__init__()
        self.temperature, self.momentum = warmup, momentum
        self.register_buffer("center", torch.zeros(1, out))

    def forward(self, student, teacher):
        target = functional.softmax(
            (teacher - self.center) / self.temperature, dim=-1
        )  # guilty: the center before the capture
        loss = (-target.detach() * functional.log_softmax(student / 0.1, dim=-1)).sum(-1).mean()
        self.update_center(teacher)
        return loss

    @torch.no_grad()
    def update_center(self, teacher):
        batch_center = teacher.sum(dim=0, keepdim=True) / len(teacher)
        self.center = self.center * self.momentum + batch_center * (
            1 - self.momentum
        )  # guilty: another tensor, which no replay reads


def distillation_with_a_center(device):
    student, teacher = _encoder(device), _encoder(device).requires_grad_(False)
    criterion = _SelfDistillation().to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, capturable=True)
    x, y = _views(device)

    def step():
        optimizer.zero_grad()
        loss = criterion(student(x), teacher(y))
        loss.backward()
        optimizer.step()
        return loss

    return step


def _off_diagonal(x):
    n, _ = x.shape
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


# Redundancy by the cross correlation, whose other entries are found by a view.
def redundancy_of_two_views(device):
    model, norm = _encoder(device), nn.BatchNorm1d(8, affine=False).to(device)

    def forward(x, y):
        c = norm(model(x)).T @ norm(model(y)) / len(x)
        return torch.diagonal(c).add(-1).pow(2).sum() + 0.005 * _off_diagonal(c).pow(2).sum()

    return forward, _views(device)


# Codes of equal share, by three rounds of an iteration.
def prototypes_with_balanced_codes(device):
    model, prototypes = _encoder(device), nn.Linear(8, 5, bias=False).to(device)
    optimizer = torch.optim.SGD([*model.parameters(), *prototypes.parameters()], lr=0.1)
    x, y = _views(device)

    @torch.no_grad()
    def codes(scores, eps=0.05, rounds=3):
        q = torch.exp(scores / eps).t()
        q /= torch.sum(q)
        for _ in range(rounds):
            q /= q.sum(dim=1, keepdim=True) * q.shape[0]
            q /= q.sum(dim=0, keepdim=True) * q.shape[1]
        return (q * q.shape[1]).t()

    def step():
        with torch.no_grad():
            w = functional.normalize(prototypes.weight.data.clone(), dim=1, p=2)
            prototypes.weight.copy_(w)
        scores = [prototypes(functional.normalize(model(each), dim=1)) for each in (x, y)]
        targets = [codes(each.detach()) for each in reversed(scores)]
        loss = sum(
            -(t * functional.log_softmax(s / 0.1, 1)).sum(1).mean()
            for s, t in zip(scores, targets, strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


# The weights of the classes are normalised after each step, and bound anew.
def prototypes_normalised_by_assignment(device):
    model, prototypes = _encoder(device), nn.Linear(8, 5, bias=False).to(device)
    optimizer = torch.optim.SGD([*model.parameters(), *prototypes.parameters()], lr=0.1)
    x, y = torch.randn(6, 12, device=device), torch.randint(5, (6,), device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(
            prototypes(model(x)) * 4, y
        )  # guilty: reads weights that were never normalised
        loss.backward()
        optimizer.step()
        weight = prototypes.weight
        weight.data = functional.normalize(weight.data, dim=1)  # guilty: another tensor
        return loss

    return step


# Patches are shuffled by noise of the device, and a fixed share is kept.
def masked_patches(device):
    dim, patches = 8, 12
    embed, decoder = nn.Linear(6, dim).to(device), nn.Linear(dim, 6).to(device)
    mask_token = nn.Parameter(torch.zeros(1, 1, dim, device=device))

    def forward(x):
        z, keep = embed(x), int(patches * 0.25)
        noise = torch.rand(x.shape[0], patches, device=x.device)
        shuffle = torch.argsort(noise, dim=1)
        restore = torch.argsort(shuffle, dim=1)
        kept = torch.gather(z, 1, shuffle[:, :keep].unsqueeze(-1).repeat(1, 1, dim))
        mask = torch.ones([x.shape[0], patches], device=x.device)
        mask[:, :keep] = 0
        mask = torch.gather(mask, 1, restore)
        tokens = mask_token.repeat(x.shape[0], patches - keep, 1)
        full = torch.gather(
            torch.cat([kept, tokens], 1), 1, restore.unsqueeze(-1).repeat(1, 1, dim)
        )
        loss = (decoder(full) - x).pow(2).mean(-1)
        return (loss * mask).sum() / mask.sum()

    return forward, (torch.randn(2, patches, 6, device=device),)


class _MaskGenerator:
    def __init__(self, count=12, ratio=0.6):
        self.count, self.masked = count, int(np.ceil(count * ratio))

    def __call__(self):
        chosen = np.random.permutation(self.count)[: self.masked]
        mask = np.zeros(self.count, dtype=int)
        mask[chosen] = 1
        return mask


# The mask comes from NumPy in each call.
def masked_patches_by_numpy(device):
    embed, generator = nn.Linear(6, 6).to(device), _MaskGenerator()

    def forward(x):
        mask = torch.from_numpy(generator()).to(x.device)  # guilty: copied from pageable memory
        return ((embed(x) - x).abs() * mask[None, :, None]).sum() / mask.sum()

    return forward, (torch.randn(2, 12, 6, device=device),)


class _Slots(nn.Module):
    """Competing slots, which begin with noise of the device."""

    def __init__(self, slots=3, dim=8, rounds=3):
        super().__init__()
        self.slots, self.rounds, self.dim = slots, rounds, dim
        self.mu = nn.Parameter(torch.randn(1, 1, dim))
        self.log_sigma = nn.Parameter(torch.zeros(1, 1, dim))
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.gru, self.norm = nn.GRUCell(dim, dim), nn.LayerNorm(dim)

    def forward(self, x):
        b = x.shape[0]
        mu, sigma = (t.expand(b, self.slots, -1) for t in (self.mu, self.log_sigma.exp()))
        slots = mu + sigma * torch.randn(mu.shape, device=x.device, dtype=x.dtype)
        k, v = self.k(x), self.v(x)
        for _ in range(self.rounds):
            previous, slots = slots, self.norm(slots)
            attn = torch.einsum("bid,bjd->bij", self.q(slots), k) * self.dim**-0.5
            attn = attn.softmax(dim=1) + 1e-8
            updates = torch.einsum("bjd,bij->bid", v, attn / attn.sum(dim=-1, keepdim=True))
            slots = self.gru(updates.reshape(-1, self.dim), previous.reshape(-1, self.dim))
            slots = slots.reshape(b, -1, self.dim)
        return slots


def slots_that_compete(device):
    return _Slots().to(device), (torch.randn(2, 5, 8, device=device),)


# The tables are arrays of NumPy, and each look-up copies one to the device.
def diffusion_tables_of_numpy(device):
    net = _encoder(device, out=12)
    betas = np.linspace(1e-4, 0.02, 50, dtype=np.float64)
    alphas = np.cumprod(1.0 - betas, axis=0)

    def extract(table, t, shape):
        res = torch.from_numpy(table).to(device=t.device)[t].float()  # guilty: copies the table
        while len(res.shape) < len(shape):
            res = res[..., None]
        return res.expand(shape)

    def forward(x, t, noise):
        a = extract(np.sqrt(alphas), t, x.shape)
        b = extract(np.sqrt(1.0 - alphas), t, x.shape)
        return (net(a * x + b * noise) - noise).pow(2).mean()

    x, noise = _views(device)
    return forward, (x, torch.randint(50, (6,), device=device), noise)


# The time of each round is a tensor that is made from a list.
def sampler_that_makes_its_times(device):
    net, alphas = _encoder(device, out=12), torch.linspace(0.99, 0.1, 8, device=device)

    @torch.no_grad()
    def sample(x):
        for i in list(range(8))[::-1]:
            t = torch.tensor([i] * x.shape[0], device=x.device)  # guilty: from a list of the host
            a = alphas[t][:, None]
            x = (x - (1 - a) * net(x)) / a.sqrt()
        return x

    return sample, (torch.randn(6, 12, device=device),)


# One share of the mixture for the whole batch, drawn by NumPy.
def mixtures_of_pairs(device):
    model, criterion = _encoder(device, out=5), nn.CrossEntropyLoss()

    def forward(x, y, alpha=0.4):
        lam = np.random.beta(alpha, alpha)  # guilty: drawn once
        mixed = lam * x + (1 - lam) * x.flip(0)  # guilty: the share of the capture
        out = model(mixed)
        return lam * criterion(out, y) + (1 - lam) * criterion(out, y.flip(0))

    return forward, (torch.randn(6, 12, device=device), torch.randint(5, (6,), device=device))


class _LayerDrop(nn.Module):
    """Leaves out layers in training, by a number that PyTorch draws on the host."""

    def __init__(self, dim=8, depth=3, layerdrop=0.1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.layerdrop = layerdrop

    def forward(self, x):
        for layer in self.layers:
            dropout_probability = torch.rand([])
            skip = self.training and dropout_probability < self.layerdrop
            if not skip:  # guilty: the layers of the capture
                x = x + torch.tanh(layer(x))
        return x


def layers_left_out_at_random(device):
    model = _LayerDrop().to(device)

    @torch.no_grad()
    def forward(x):
        return model(x)

    return forward, (torch.randn(3, 8, device=device),)


class _DropPath(nn.Module):
    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask.div_(keep)


# Paths are dropped by masks of the device; the rates grow with depth, not with time.
def paths_dropped_by_masks(device):
    rates = [rate.item() for rate in torch.linspace(0, 0.2, 3)]
    layers = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), _DropPath(rate))
        for rate in rates
    ).to(device)

    def forward(x):
        for layer in layers:
            x = x + layer(x)
        return x

    return forward, (torch.randn(3, 8, device=device),)


# Statistics as a plain average over all batches, for which the module reads how many there were.
def normalisation_by_the_plain_average(device):
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Flatten()
    ).to(device)
    head = nn.Linear(4 * 36, 2).to(device)

    def forward(x):
        return head(net(x))  # guilty: float() of the number of batches

    return forward, (torch.randn(2, 3, 8, 8, device=device),)


# The length of the sequences grows with the steps.
def curriculum_of_lengths(device):
    cell, head = nn.GRU(6, 8, batch_first=True).to(device), nn.Linear(8, 6).to(device)
    progress = types.SimpleNamespace(step=0, start=4)

    @torch.no_grad()
    def forward(x):
        length = min(progress.start + progress.step // 500, x.shape[1])
        progress.step += 1  # guilty: no replay counts
        y, _ = cell(x[:, :length])  # guilty: the length of the capture
        return head(y).square().mean()

    return forward, (torch.randn(2, 10, 6, device=device),)


class _Annealed(nn.Module):
    """The weight of the divergence is an attribute that the trainer sets, and never the model."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 8), nn.Linear(4, 12)
        self.beta = 0.25

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        divergence = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()
        return functional.mse_loss(self.decode(z), x) + self.beta * divergence


def variational_loss_of_a_set_weight(device):
    return _Annealed().to(device), (torch.randn(6, 12, device=device),)


# Gradients of tasks that conflict are projected, one pair after the other.
def projects_conflicting_gradients(device):
    model, x = _encoder(device), torch.randn(6, 12, device=device)
    params = list(model.parameters())

    def step():
        out = model(x)
        losses = [out[:, :4].square().mean(), (out[:, 4:] - 1).abs().mean()]
        grads = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])
            for loss in losses
        ]
        projected = [g.clone() for g in grads]
        for i, g in enumerate(projected):
            for j, other in enumerate(grads):
                if i != j and (dot := g @ other) < 0:  # guilty: the truth of a tensor
                    g -= dot / other.norm() ** 2 * other
        total, start = sum(projected), 0
        with torch.no_grad():
            for p in params:
                p.sub_(total[start : start + p.numel()].view_as(p), alpha=0.1)
                start += p.numel()
        return losses[0] + losses[1]

    return step


# The same by a mask: what does not conflict is left by a factor of zero.
def projects_conflicts_by_a_mask(device):
    model, x = _encoder(device), torch.randn(6, 12, device=device)
    params = list(model.parameters())

    def step():
        out = model(x)
        losses = [out[:, :4].square().mean(), (out[:, 4:] - 1).abs().mean()]
        flat = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])
            for loss in losses
        ]
        a, b = flat
        dot = (a @ b).clamp(max=0)
        total = a - dot / b.square().sum() * b + b - dot / a.square().sum() * a
        with torch.no_grad():
            for p, g in zip(params, total.split([p.numel() for p in params]), strict=True):
                p.sub_(g.view_as(p), alpha=0.1)
        return losses[0] + losses[1]

    return step


# The order of the tasks is shuffled by `random` before each step.
def tasks_in_a_random_order(device):
    heads = nn.ModuleDict({name: nn.Linear(12, 4) for name in ("a", "b", "c")}).to(device)
    x, order = torch.randn(6, 12, device=device), ["a", "b", "c"]

    @torch.no_grad()
    def step():
        random.shuffle(order)  # guilty: the order of the capture
        state = torch.zeros(6, 4, device=device)
        for name in order:  # guilty: the order of the capture
            state = torch.tanh(state * 0.5 + heads[name](x))
        return state

    return step


@dataclasses.dataclass
class _Result:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def predictions(self):
        return self.logits.argmax(-1)


class _Classifier(nn.Module):
    """Made from settings; some things are computed once, in the first call."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(settings["depth"]))
        self.embed, self.head = nn.Linear(12, 8), nn.Linear(8, 5)
        self.act = {"relu": torch.relu, "gelu": partial(functional.gelu, approximate="tanh")}[
            settings.get("act", "gelu")
        ]
        self.calls = 0

    @cached_property
    def class_weights(self):
        counts = torch.tensor([10.0, 5.0, 3.0, 1.0, 1.0])
        return (1 / counts / (1 / counts).sum()).to(self.head.weight.device)

    def forward(self, x, labels=None, *, output_hidden_states=False, **unused):
        assert x.ndim == 2 and x.is_floating_point(), x.shape
        self.calls += 1
        with torch.profiler.record_function("embed"):
            h = self.embed(x)
        hidden = [h]
        for i, layer in enumerate(self.body):
            if i in self.settings.get("skip", ()):
                continue
            h = self.act(layer(h)) + h
            hidden.append(h)
        logits = self.head(h)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits, labels, self.class_weights)
        extra = {"norms": {f"layer{i}": each.norm() for i, each in enumerate(hidden)}}
        return _Result(loss, logits, tuple(hidden) if output_hidden_states else (), extra)


# A count of calls that nothing reads, a cached property, and a result of a class of its own.
def classifier_with_a_result_class(device):
    model = _Classifier({"depth": 3, "skip": [1]}).to(device)
    x, y = torch.randn(6, 12, device=device), torch.randint(5, (6,), device=device)
    batch = {"x": x, "labels": y, "index": 3}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        result = model(**batch, output_hidden_states=True)
        result.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return result, result.predictions

    return step


# Learned weights of losses, temperatures with bounds, and a penalty on the way back to the start.
def uncertainty_weights_and_bounds(device):
    model, start = _encoder(device), [p.detach().clone() for p in _encoder(device).parameters()]
    log_vars = nn.Parameter(torch.zeros(2, device=device))
    scale = nn.Parameter(torch.full((), math.log(1 / 0.07), device=device))
    optimizer = torch.optim.SGD([*model.parameters(), log_vars, scale], lr=0.05)
    x, y = _views(device)

    def step():
        a, b = (functional.normalize(model(each), dim=-1) for each in (x, y))
        logits = scale.exp() * a @ b.t()
        target = torch.arange(len(a), device=a.device)
        losses = torch.stack(
            [functional.cross_entropy(each, target) for each in (logits, logits.t())]
        )
        loss = (losses * (-log_vars).exp() + log_vars).sum()
        loss = loss + 1e-2 * sum(
            (p - s).pow(2).sum() for p, s in zip(model.parameters(), start, strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(0, math.log(100))
        return loss

    return step

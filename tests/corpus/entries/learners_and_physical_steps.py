"""Steps of learners and of physical systems, as their authors write them."""

from __future__ import annotations

import copy
import dataclasses
import enum

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional


# Molecules: forces by autograd, positions in place.
def verlet_with_forces_by_autograd(device):
    torch.manual_seed(0)
    box, count, dt = 5.0, 12, 1e-3
    position = torch.rand(count, 3, device=device) * box
    velocity = torch.zeros_like(position)
    itself = torch.eye(count, dtype=torch.bool, device=device)

    def forces():
        free = position.detach().requires_grad_()
        apart = free[:, None] - free[None]
        apart = apart - box * (apart / box).round()
        squared = apart.square().sum(-1).masked_fill(itself, 1.0) + 0.5
        sixth = squared.pow(-3).masked_fill(itself, 0.0)
        energy = 2 * (sixth * sixth - sixth).sum()
        (gradient,) = torch.autograd.grad(energy, free)
        return -gradient, energy.detach()

    @torch.enable_grad()
    def step():
        force, _ = forces()
        velocity.add_(force, alpha=dt / 2)
        position.add_(velocity, alpha=dt).remainder_(box)
        force, energy = forces()
        velocity.add_(force, alpha=dt / 2)
        return energy + 0.5 * velocity.square().sum()

    return step


# Quantization-aware training with an observer whose first call is a mask.
class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x / scale).round().clamp(-128, 127) * scale

    @staticmethod
    def backward(ctx, upstream):
        x, scale = ctx.saved_tensors
        return upstream * (x.abs() <= 127 * scale), None


class Observed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("peak", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def forward(self, x):
        with torch.no_grad():
            now = x.detach().abs().amax()
            self.peak.copy_(torch.where(self.seen, self.peak.lerp(now, 0.1), now))
            self.seen.fill_(True)
        scale = (self.peak / 127).clamp(min=1e-8)
        return self.inner(RoundThrough.apply(x, scale))


def quantized_training_with_an_observer(device):
    torch.manual_seed(0)
    model = nn.Sequential(Observed(nn.Linear(8, 16)), nn.ReLU(), Observed(nn.Linear(16, 1))).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(32, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x).squeeze(-1) - x.sum(-1)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Reptile: an inner loop over functional weights, an outer step in place.
def reptile_over_functional_weights(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    slow = dict(net.named_parameters())

    def loss_of(weights, x, y):
        return functional.mse_loss(functional_call(net, weights, (x,)), y)

    @torch.no_grad()
    def outer(xs, ys):
        fast = {name: value.clone() for name, value in slow.items()}
        for x, y in zip(xs.unbind(), ys.unbind(), strict=True):
            slopes = grad(loss_of)(fast, x, y)
            fast = {name: value - 0.05 * slopes[name] for name, value in fast.items()}
        for name, value in slow.items():
            value.lerp_(fast[name], 0.1)
        return loss_of(fast, xs[-1], ys[-1])

    xs = torch.rand(3, 10, 1, device=device)
    return outer, (xs, (6 * xs).sin())


# Federated averaging with stacked clients.
def federated_round_of_stacked_clients(device):
    torch.manual_seed(0)
    net = nn.Linear(6, 3).to(device)
    server = {name: value.detach() for name, value in net.named_parameters()}
    x = torch.randn(5, 20, 6, device=device)
    y = torch.randint(3, (5, 20), device=device)
    samples = torch.tensor([20.0, 5.0, 11.0, 8.0, 16.0], device=device)

    def client_loss(weights, x, y, count):
        valid = torch.arange(len(x), device=x.device) < count
        losses = functional.cross_entropy(functional_call(net, weights, (x,)), y, reduction="none")
        return (losses * valid).sum() / count

    def round_of_clients():
        local = {k: v.expand(5, *v.shape).clone() for k, v in server.items()}
        for _ in range(2):
            slopes = vmap(grad(client_loss))(local, x, y, samples)
            local = {k: v - 0.1 * slopes[k] for k, v in local.items()}
        share = samples / samples.sum()
        for name, value in server.items():
            value.copy_(torch.tensordot(share, local[name], 1))
        return vmap(client_loss, in_dims=(None, 0, 0, 0))(server, x, y, samples)

    return round_of_clients


# A self-paced curriculum that lives in a tensor.
class Pace:
    """A threshold that grows on the device; `value` is a property, not a number."""

    def __init__(self, start, factor, device):
        self._threshold = torch.full((), start, device=device)
        self.factor = factor

    @property
    def value(self):
        return self._threshold

    @value.setter
    def value(self, new):
        self._threshold.copy_(new)


def self_paced_learning(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=torch.tensor(0.01, device=device), capturable=True
    )
    pace = Pace(0.4, 1.02, device)
    x = torch.randn(64, 4, device=device)
    y = (x[:, 0] > 0).long()

    def step():
        optimizer.zero_grad(set_to_none=False)
        losses = functional.cross_entropy(model(x), y, reduction="none")
        easy = (losses.detach() < pace.value).float()
        loss = (losses * easy).sum() / easy.sum().clamp(min=1.0)
        loss.backward()
        optimizer.step()
        pace.value = pace.value * pace.factor
        return loss.detach(), easy.sum()

    return step


# An explicit step in time by the largest speed.
@dataclasses.dataclass
class Fluid:
    height: torch.Tensor
    flow: torch.Tensor
    dx: float = 0.1
    courant: float = 0.4

    def limit(self):
        speed = self.flow.abs() / self.height + (9.81 * self.height).sqrt()
        return self.courant * self.dx / float(speed.max())  # guilty: the speed is read

    def advance(self):
        dt = self.limit()
        h, q = self.height, self.flow
        force = q * q / h + 4.905 * h * h
        new_h = 0.5 * (h.roll(1) + h.roll(-1)) - dt / (2 * self.dx) * (q.roll(-1) - q.roll(1))
        new_q = 0.5 * (q.roll(1) + q.roll(-1)) - dt / (2 * self.dx) * (
            force.roll(-1) - force.roll(1)
        )
        self.height.copy_(new_h)
        self.flow.copy_(new_q)
        return self.height.mean()


def shallow_water_limits_its_step(device):
    torch.manual_seed(0)
    return Fluid(1 + 0.1 * torch.rand(50, device=device), torch.zeros(50, device=device)).advance


# Pruning follows a schedule in a dataclass.
@dataclasses.dataclass(frozen=True)
class Sparsity:
    goal: float = 0.9
    share: float = 0.0
    factor: float = 0.97

    def next(self):
        return dataclasses.replace(self, share=self.goal - (self.goal - self.share) * self.factor)


def pruning_by_a_dataclass(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(32, 8, device=device)
    y = torch.randint(2, (32,), device=device)
    plan = Sparsity()

    def step():
        nonlocal plan
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        plan = plan.next()  # guilty: every replay prunes the share of the capture
        with torch.no_grad():
            weight = model[0].weight
            keep = weight.numel() - int(plan.share * weight.numel())
            least = weight.abs().flatten().topk(keep).values[-1]
            weight.mul_(weight.abs() >= least)
        return loss.detach()

    return step


# A lagged target is a deep copy.
def target_is_copied_in_the_step(device):
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    holder = {"target": copy.deepcopy(online).requires_grad_(False)}
    optimizer = torch.optim.SGD(online.parameters(), lr=0.05)
    before, after = torch.randn(2, 32, 6, device=device).unbind()
    action = torch.randint(3, (32, 1), device=device)
    reward = torch.randn(32, device=device)

    def step():
        optimizer.zero_grad()
        with torch.no_grad():
            goal = reward + 0.9 * holder["target"](after).amax(-1)  # guilty: the first target
        loss = functional.smooth_l1_loss(online(before).gather(1, action).squeeze(1), goal)
        loss.backward()
        holder["target"] = copy.deepcopy(online)  # guilty: a replay asks the target of the capture
        optimizer.step()
        return loss.detach()

    return step


# Federated averaging weighs by counts of the host.
class Server:
    def __init__(self, model, clients):
        self.model = model
        self.clients = clients
        self.samples = {name: 10 * (rank + 1) for rank, name in enumerate(clients)}

    @torch.no_grad()
    def aggregate(self):
        counts = torch.tensor(list(self.samples.values()), dtype=torch.float32)
        share = (counts / counts.sum()).to(self.device)  # guilty: an upload from pageable memory
        for name, value in self.model.named_parameters():
            stacked = torch.stack([client.get_parameter(name) for client in self.clients.values()])
            value.copy_(torch.tensordot(share, stacked, 1))
        return torch.stack([value.norm() for value in self.model.parameters()])

    @property
    def device(self):
        return next(self.model.parameters()).device


def server_weighs_its_clients(device):
    torch.manual_seed(0)
    clients = {name: nn.Linear(5, 2).to(device) for name in ("north", "south", "west")}
    return Server(nn.Linear(5, 2).to(device), clients).aggregate


# Stages of a curriculum in an enum.
class Stage(enum.Enum):
    EASY = 0.1
    MEDIUM = 0.3
    HARD = 0.6

    @classmethod
    def at(cls, step):
        return cls.EASY if step < 8 else cls.MEDIUM if step < 16 else cls.HARD


class Curriculum:
    def __init__(self, device):
        self.model = nn.Linear(12, 12).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = torch.randn(16, 12, device=device)
        self.done = 0

    @property
    def stage(self):
        return Stage.at(self.done)

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        hidden = torch.rand_like(self.x) < self.stage.value  # guilty: the stage of the capture
        loss = (self.model(self.x.masked_fill(hidden, 0.0)) - self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.done += 1  # guilty: no replay counts
        return loss.detach()


def curriculum_by_an_enum(device):
    torch.manual_seed(0)
    return Curriculum(device)


# A hook of backward tames large gradients.
class Tamed(nn.Module):
    def __init__(self, d=8, most=0.5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, d), nn.Tanh())
        self.head = nn.Linear(d, 1)
        self.most = most
        self.body.register_full_backward_hook(self._tame)

    def _tame(self, module, inwards, outwards):
        (slope,) = inwards
        if slope is not None and slope.norm() > self.most:  # guilty: Python asks a device bool
            return (slope * (self.most / slope.norm()),)
        return None

    def forward(self, x):
        return self.head(self.body(x)).square().mean()


def hook_tames_gradients(device):
    torch.manual_seed(0)
    return Tamed().to(device), (torch.randn(5, 8, device=device, requires_grad=True),)

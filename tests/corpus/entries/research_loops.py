"""Loops of research code, whose state lives in frameworks, hooks, samplers and optimizers."""

import copy
import math
import random
from collections import Counter
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional


def _net(device: str, inputs: int = 12, outputs: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs)).to(device)


def _batch(device: str, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 12, device=device), torch.randint(5, (n,), device=device)


class GradientState:
    """All instances share their attributes, as in Accelerate."""

    _shared_state: ClassVar[dict[str, object]] = {}

    def __init__(self, every=None):
        self.__dict__ = self._shared_state
        if every is not None:
            self.every, self.seen = every, 0

    @property
    def sync_gradients(self):
        return self.seen % self.every == 0


class AcceleratedOptimizer:
    def __init__(self, optimizer):
        self.optimizer, self.gradient_state = optimizer, GradientState()

    def step(self):
        if self.gradient_state.sync_gradients:  # guilty: the branch of the capture
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)


def steps_when_a_shared_state_says_so(device):
    GradientState(every=16)
    model, (x, y) = _net(device), _batch(device)
    opt = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), 0.05))

    def step():
        state = GradientState()
        state.seen += 1  # guilty: no replay counts
        loss = functional.cross_entropy(model(x), y)
        (loss / state.every).backward()
        opt.step()
        return loss.detach()

    return step


_STORAGES: list["EventStorage"] = []


class EventStorage:
    """Of detectron2: losses ask the innermost storage for the iteration."""

    def __init__(self, iteration=0):
        self._iter = iteration

    @property
    def iter(self):
        return self._iter

    def step(self):
        self._iter += 1  # guilty: no replay counts

    def __enter__(self):
        _STORAGES.append(self)
        return self

    def __exit__(self, *error):
        _STORAGES.pop()


def _get_event_storage():
    return _STORAGES[-1]


class WarmedUpLoss(nn.Module):
    def __init__(self, warmup):
        super().__init__()
        self.warmup = warmup

    def forward(self, logits, y):
        factor = min(1.0, _get_event_storage().iter / self.warmup)
        return functional.cross_entropy(logits, y) * factor  # guilty: the factor of the capture


def loss_asks_the_event_storage(device):
    model, (x, y) = _net(device), _batch(device)
    loss_fn, storage = WarmedUpLoss(5000), EventStorage(100)
    opt = torch.optim.SGD(model.parameters(), 0.05)

    def step():
        with storage:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            storage.step()
        return loss.detach()

    return step


def teacher_copied_after_each_step(device):
    student, (x, _) = _net(device), _batch(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), 0.05)

    def step():
        nonlocal teacher
        opt.zero_grad()
        target = teacher(x.roll(1, 0)).softmax(1)  # guilty: the teacher of the capture
        loss = functional.cross_entropy(student(x), target)
        loss.backward()
        opt.step()
        teacher = copy.deepcopy(student).requires_grad_(False)  # guilty: other memory
        return loss.detach()

    return step


def _constrained(device, controller):
    policy, (x, _) = _net(device), _batch(device)
    reward, cost = torch.randn(16, 5, device=device), torch.rand(16, 5, device=device)
    opt = torch.optim.SGD(policy.parameters(), 0.05)

    def step():
        opt.zero_grad()
        p = policy(x).softmax(1)
        spent = (p * cost).sum(1).mean()
        weight = controller.update(spent.detach())
        loss = -(p * reward).sum(1).mean() + weight * spent
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class PidMultiplier:
    """Of responsive safety: the multiplier is a controller of the violation."""

    def __init__(self, device, limit=0.3, gains=(0.1, 0.01, 0.01)):
        self.limit, self.gains = limit, gains
        self.integral = torch.zeros((), device=device)
        self.before = torch.zeros((), device=device)

    def update(self, spent):
        kp, ki, kd = self.gains
        error = spent - self.limit
        self.integral.add_(error).clamp_(min=0)
        slope = (spent - self.before).clamp(min=0)
        self.before.copy_(spent)
        return (kp * error + ki * self.integral + kd * slope).clamp(min=0)


class PidMultiplierByMax(PidMultiplier):
    def update(self, spent):
        kp, ki, kd = self.gains
        error = spent - self.limit
        self.integral.copy_(max(self.integral + error, error * 0))  # guilty: the host compares
        slope = torch.relu(spent - self.before)
        self.before.copy_(spent)
        return torch.relu(kp * error + ki * self.integral + kd * slope)


def violation_controlled_by_max(device):
    return _constrained(device, PidMultiplierByMax(device))


def violation_controlled_by_clamp(device):
    return _constrained(device, PidMultiplier(device))


class LearnedOptimizer(nn.Module):
    """A small recurrent network proposes the update of each coordinate."""

    def __init__(self, params):
        super().__init__()
        self.cell, self.out = nn.GRUCell(1, 4), nn.Linear(4, 1)
        self.params = list(params)

    def begin(self):
        self.hidden = [torch.zeros(p.numel(), 4, device=p.device) for p in self.params]
        return self

    @torch.no_grad()
    def step(self):
        for i, p in enumerate(self.params):
            self.remember(i, self.cell(p.grad.reshape(-1, 1), self.hidden[i]))
            p.add_(self.out(self.hidden[i]).view_as(p), alpha=0.01)

    def remember(self, i, hidden):
        self.hidden[i].copy_(hidden)


class ReboundLearnedOptimizer(LearnedOptimizer):
    @torch.no_grad()
    def step(self):
        for i, p in enumerate(self.params):
            self.hidden[i] = self.cell(  # guilty: rebound in each call
                p.grad.reshape(-1, 1),
                self.hidden[i],  # guilty: that of before the capture
            )
            p.add_(self.out(self.hidden[i]).view_as(p), alpha=0.01)


def _learned(device, kind):
    model, (x, y) = _net(device), _batch(device)
    opt = kind(model.parameters()).to(device).begin()

    def step():
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def optimizer_with_a_rebound_memory(device):
    return _learned(device, ReboundLearnedOptimizer)


def optimizer_with_a_copied_memory(device):
    return _learned(device, LearnedOptimizer)


class SaliencyWeights(nn.Module):
    """The gradient that came back in the last step weighs the features of this one."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("saliency", torch.ones(width))
        self.register_full_backward_hook(self.keep)

    def keep(self, module, grad_input, grad_output):
        self.saliency.copy_(grad_output[0].abs().mean(0))

    def forward(self, x):
        s = self.saliency.clone()
        return x * (s / s.sum() * len(s))


class ReboundSaliencyWeights(SaliencyWeights):
    def keep(self, module, grad_input, grad_output):
        self.saliency = grad_output[0].abs().mean(0)  # guilty: rebound in backward

    def forward(self, x):
        s = self.saliency
        return x * (s / s.sum() * len(s))  # guilty: the gradient before the capture


def _salient(device, layer):
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), layer(16), nn.Linear(16, 5)).to(device)
    (x, y), opt = _batch(device), torch.optim.SGD(model.parameters(), 0.05)

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def features_weighed_by_a_rebound_gradient(device):
    return _salient(device, ReboundSaliencyWeights)


def features_weighed_by_a_kept_gradient(device):
    return _salient(device, SaliencyWeights)


def _langevin(energy, x, steps=5, size=0.1):
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(energy(x).sum(), x)
        x = x - size * g.clamp(-0.03, 0.03) + 0.005 * torch.randn_like(x)
    return x.detach().clamp(-1, 1)


class ListSampler:
    """Chains go on from examples drawn from a list."""

    def __init__(self, energy, device, n=16, keep=256):
        self.energy, self.n, self.keep = energy, n, keep
        self.examples = list(torch.rand(n, 12, device=device).chunk(n))

    def sample(self):
        new = int(self.n * 0.1)
        fresh = torch.rand(new, 12, device=self.examples[0].device) * 2 - 1
        old = random.choices(self.examples, k=self.n - new)  # guilty: those of the capture
        x = _langevin(self.energy, torch.cat([fresh, *old]))
        self.examples = [*x.chunk(self.n), *self.examples][: self.keep]  # guilty: not replayed
        return x


class RingSampler:
    def __init__(self, energy, device, n=16, keep=256):
        self.energy, self.n = energy, n
        self.examples = torch.rand(keep, 12, device=device) * 2 - 1
        self.places = torch.arange(n, device=device)

    def sample(self):
        keep = len(self.examples)
        chosen = torch.randint(keep, (self.n,), device=self.examples.device)
        anew = torch.rand(self.n, 1, device=self.examples.device) < 0.05
        start = torch.where(anew, torch.rand_like(self.examples[chosen]), self.examples[chosen])
        x = _langevin(self.energy, start)
        self.examples[self.places] = x
        self.places.add_(self.n).remainder_(keep)
        return x


def _energy_based(device, sampler):
    energy, (real, _) = _net(device, 12, 1), _batch(device)
    opt = torch.optim.Adam(energy.parameters(), 1e-4, capturable=True, betas=(0.0, 0.999))
    chains = sampler(energy, device)

    def step():
        fake = chains.sample()
        opt.zero_grad()
        up, down = energy(real), energy(fake)
        loss = (down - up).mean() * -1 + 0.1 * (up**2 + down**2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(energy.parameters(), 0.1)
        opt.step()
        return loss.detach()

    return step


def chains_from_a_list_of_examples(device):
    return _energy_based(device, ListSampler)


def chains_from_a_ring_of_examples(device):
    return _energy_based(device, RingSampler)


class TaggerLoss(nn.Module):
    """A linear chain, as in pytorch-crf."""

    def __init__(self, tags):
        super().__init__()
        self.start = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.end = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(tags, tags).uniform_(-0.1, 0.1))

    def validate(self, emissions, mask):
        if emissions.shape[:2] != mask.shape:
            raise ValueError("the first two dimensions of emissions and mask must match")

    def forward(self, emissions, tags, mask):
        self.validate(emissions, mask)
        length, n = tags.shape
        rows = torch.arange(n, device=tags.device)
        score = self.start[tags[0]] + emissions[0, rows, tags[0]]
        total = self.start + emissions[0]
        for i in range(1, length):
            moved = self.transitions[tags[i - 1], tags[i]] + emissions[i, rows, tags[i]]
            score = score + moved * mask[i]
            inner = total[:, :, None] + self.transitions + emissions[i][:, None]
            total = torch.where(mask[i][:, None], inner.logsumexp(1), total)
        last = tags[mask.long().sum(0) - 1, rows]
        return ((total + self.end).logsumexp(1) - score - self.end[last]).mean()


class CheckedTaggerLoss(TaggerLoss):
    def validate(self, emissions, mask):
        super().validate(emissions, mask)
        no_gaps = mask[0].all()
        if not no_gaps:  # guilty: asks the mask
            raise ValueError("mask of the first timestep must all be on")


def _tagger(device, loss_type):
    encoder, crf = nn.Linear(12, 4).to(device), loss_type(4).to(device)
    x, tags = torch.randn(7, 3, 12, device=device), torch.randint(4, (7, 3), device=device)
    mask = torch.arange(7, device=device)[:, None] < torch.tensor([7, 5, 3], device=device)
    return lambda x, tags, mask: crf(encoder(x), tags, mask), (x, tags, mask)


def tags_with_a_checked_mask(device):
    return _tagger(device, CheckedTaggerLoss)


def tags_with_an_unchecked_mask(device):
    return _tagger(device, TaggerLoss)


def _spline(inputs, widths, heights, slopes, left=-3.0, right=3.0):
    """Monotonic rational-quadratic spline on an interval."""
    edges = []
    for raw in (widths, heights):
        parts = 1e-3 + (1 - 1e-3 * raw.shape[-1]) * raw.softmax(-1)
        knots = functional.pad(parts.cumsum(-1), (1, 0))
        edges.append(left + (right - left) * knots)
    slopes = 1e-3 + functional.softplus(slopes)
    bin_of = (inputs[..., None] >= edges[0][..., 1:-1]).sum(-1, keepdim=True)

    def at(t, shift=0):
        return t.gather(-1, bin_of + shift).squeeze(-1)

    x0, w = at(edges[0]), at(edges[0], 1) - at(edges[0])
    y0, h = at(edges[1]), at(edges[1], 1) - at(edges[1])
    d0, d1, s = at(slopes), at(slopes, 1), h / w
    theta = ((inputs - x0) / w).clamp(0, 1)
    bend = theta * (1 - theta)
    bottom = s + (d0 + d1 - 2 * s) * bend
    outputs = y0 + h * (s * theta**2 + d0 * bend) / bottom
    top = s**2 * (d1 * theta**2 + 2 * s * bend + d0 * (1 - theta) ** 2)
    return outputs, top.log() - 2 * bottom.log()


def _flow(device, transform):
    conditioner = _net(device, 2, 2 * 23)
    x = torch.randn(32, 4, device=device) * 2

    def loss(x):
        kept, moved = x.chunk(2, 1)
        raw = conditioner(kept).view(-1, 2, 23).split([8, 8, 7], -1)
        out, logdet = transform(moved, raw[0], raw[1], functional.pad(raw[2], (1, 1), value=0.54))
        z = torch.cat([kept, out], 1)
        return (0.5 * z.square().sum(1) - logdet.sum(1)).mean()

    return loss, (x,)


def spline_with_boolean_tails(device):
    def transform(inputs, *parameters):
        inside = (inputs >= -3) & (inputs <= 3)
        outputs, logdet = torch.zeros_like(inputs), torch.zeros_like(inputs)
        outputs[~inside] = inputs[~inside]  # guilty: as many as are outside
        outputs[inside], logdet[inside] = _spline(  # guilty: the same
            inputs[inside],  # guilty: the same
            *(p[inside, :] for p in parameters),  # guilty: the same
        )
        return outputs, logdet

    return _flow(device, transform)


def spline_with_selected_tails(device):
    def transform(inputs, *parameters):
        inside = (inputs >= -3) & (inputs <= 3)
        outputs, logdet = _spline(inputs.clamp(-3, 3), *parameters)
        return torch.where(inside, outputs, inputs), torch.where(inside, logdet, 0.0)

    return _flow(device, transform)


def thresholds_by_counted_labels(device):
    """FlexMatch: classes that are learned less have a lower threshold."""
    model, (weak, _) = _net(device), _batch(device, 32)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    selected = torch.full((32,), -1, device=device)
    accuracy = torch.zeros(5, device=device)

    def step():
        counts = Counter(selected.tolist())  # guilty: all labels are read
        if max(counts.values()) < len(selected):
            for c in range(5):
                accuracy[c] = counts[c] / max(counts.values())
        opt.zero_grad()
        with torch.no_grad():
            p, labels = model(weak).softmax(1).max(1)
            mask = p.ge(0.3 * (accuracy[labels] / (2.0 - accuracy[labels]))).float()
            selected.copy_(torch.where(p >= 0.3, labels, selected))
        strong = weak + 0.1 * torch.randn_like(weak)
        loss = (functional.cross_entropy(model(strong), labels, reduction="none") * mask).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class AlignedThreshold:
    """SoftMatch: the statistics are made by the first call."""

    def __init__(self, momentum=0.99):
        self.momentum = momentum

    @torch.no_grad()
    def weight(self, logits):
        p = logits.softmax(1)
        top = p.max(1).values
        if not hasattr(self, "mean"):
            self.mean, self.variance = top.mean(), torch.ones_like(top.mean())
            self.p_model = p.mean(0)
        else:
            self.mean.lerp_(top.mean(), 1 - self.momentum)
            self.variance.lerp_(top.var(unbiased=True), 1 - self.momentum)
            self.p_model.lerp_(p.mean(0), 1 - self.momentum)
        aligned = p / self.p_model / len(self.p_model)
        top = (aligned / aligned.sum(1, keepdim=True)).max(1).values
        return torch.exp(-((top - self.mean).clamp(max=0.0) ** 2) / (2 * self.variance / 4))


def thresholds_made_by_the_first_call(device):
    model, (weak, _) = _net(device), _batch(device, 32)
    opt, threshold = torch.optim.SGD(model.parameters(), 0.05), AlignedThreshold()

    def step():
        opt.zero_grad()
        logits = model(weak)
        mask, labels = threshold.weight(logits.detach()), logits.detach().argmax(1)
        strong = weak + 0.1 * torch.randn_like(weak)
        loss = (functional.cross_entropy(model(strong), labels, reduction="none") * mask).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def units_replaced_by_an_accumulated_share(device):
    """Continual backprop: the host adds up shares until a unit is due."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    utility = torch.zeros(32, device=device)
    due = 0.0

    def step():
        nonlocal due
        opt.zero_grad()
        hidden = model[1](model[0](x))
        loss = functional.cross_entropy(model[2](hidden), y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            utility.lerp_(hidden.abs().mean(0) * model[2].weight.abs().sum(0), 0.01)
            due += 0.05  # guilty: no replay adds
            n = int(due)
            if n >= 1:  # guilty: the branch of the capture
                due -= n
                unit = utility.argsort()[:n]
                model[0].weight[unit] = torch.randn(n, 12, device=x.device) * 0.1
                model[2].weight.index_fill_(1, unit, 0.0)
        return loss.detach()

    return step


def adafactor_of_the_library(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.Adafactor(model.parameters(), lr=0.01)

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()  # guilty: its step counts on the host
        return loss.detach()

    return step


class GumbelQuantizer(nn.Module):
    """Of wav2vec 2.0: the trainer sends the number of updates through the modules."""

    def __init__(self, width, codes, temp=(2.0, 0.5, 0.999995)):
        super().__init__()
        self.max_temp, self.min_temp, self.temp_decay = temp
        self.curr_temp = self.max_temp
        self.project = nn.Linear(width, codes)
        self.codebook = nn.Parameter(torch.randn(codes, width))

    def set_num_updates(self, num_updates):
        cooled = self.max_temp * self.temp_decay**num_updates
        self.curr_temp = max(cooled, self.min_temp)  # guilty: no replay cools it

    def forward(self, x):
        y = functional.gumbel_softmax(
            self.project(x),
            tau=self.curr_temp,  # guilty: the temperature of the capture
            hard=True,
        )
        return y @ self.codebook


class Trainer:
    def __init__(self, model, device):
        self.model, self.num_updates = model, 0
        self.opt = torch.optim.SGD(model.parameters(), 0.05)
        self.x, self.y = _batch(device)

    def set_num_updates(self, n):
        self.num_updates = n  # guilty: no replay counts
        for module in self.model.modules():
            if hasattr(module, "set_num_updates"):
                module.set_num_updates(n)

    def train_step(self):
        self.opt.zero_grad()
        loss = functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.opt.step()
        self.set_num_updates(self.num_updates + 1)
        return loss.detach()


def quantizer_is_told_the_updates(device):
    model = nn.Sequential(nn.Linear(12, 16), GumbelQuantizer(16, 8), nn.Linear(16, 5)).to(device)
    return Trainer(model, device).train_step


def _complexity_weights(batches):
    for i in range(1, batches + 1):
        yield 2.0 ** (batches - i) / (2.0**batches - 1)


class WeightsOfAnEpoch:
    def __init__(self, batches):
        self.batches = batches
        self.rest = iter(())

    def take(self):
        try:
            return next(self.rest)  # guilty: no replay goes on
        except StopIteration:
            self.rest = _complexity_weights(self.batches)
            return next(self.rest)


def complexity_cost_of_a_minibatch(device):
    """Bayes by backprop: early batches of an epoch pay for the prior."""
    mu = nn.Parameter(torch.zeros(5, 12, device=device))
    rho = nn.Parameter(torch.full((5, 12), -3.0, device=device))
    opt, (x, y) = torch.optim.SGD([mu, rho], 0.01), _batch(device)
    weights = WeightsOfAnEpoch(8)

    def step():
        opt.zero_grad()
        sigma = functional.softplus(rho)
        w = mu + sigma * torch.randn_like(mu)
        divergence = (sigma.square() + mu.square() - 1).sum() / 2 - sigma.log().sum()
        fit = functional.cross_entropy(x @ w.T, y)
        loss = fit + weights.take() * divergence  # guilty: the weight of the capture
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def order_of_the_last_losses(device):
    """The hardest rows of the last step come first; the order is rebound."""
    model, (x, y) = _net(device), _batch(device, 32)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    order = torch.arange(32, device=device)

    def step():
        nonlocal order
        opt.zero_grad()
        rows = order[:16]  # guilty: the order before the capture
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        opt.step()
        with torch.no_grad():
            losses = functional.cross_entropy(model(x), y, reduction="none")
        order = losses.argsort(descending=True)  # guilty: rebound in each call
        return losses.mean()

    return step


class DecayedMomentum(torch.optim.Optimizer):
    """The rate is a tensor in the group; multiplied in place it stays where it is."""

    def __init__(self, params, rate):
        super().__init__(params, {"lr": rate, "gamma": 0.99})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= group["gamma"]
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"] *= 0.9
                state["m"] += p.grad
                p -= group["lr"] * state["m"]


class DecayedMomentumRebound(DecayedMomentum):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = group["lr"] * group["gamma"]  # guilty: rebound in each call
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad)
                p.sub_(group["lr"] * state["m"])


def _decaying(device, kind):
    model, (x, y) = _net(device), _batch(device)
    opt = kind(model.parameters(), torch.tensor(0.05, device=device))

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def rate_of_a_group_rebound(device):
    return _decaying(device, DecayedMomentumRebound)


def rate_of_a_group_in_place(device):
    return _decaying(device, DecayedMomentum)


class DomainNorm(nn.Module):
    """One batch norm for each domain."""

    def __init__(self, width, domains):
        super().__init__()
        self.norms = nn.ModuleDict({name: nn.BatchNorm1d(width) for name in domains})
        self.domain = domains[0]

    def forward(self, x):
        return self.norms[self.domain](x)  # guilty: the domain of the capture


def domains_take_turns(device):
    domains = ["photo", "sketch", "painting"]
    norm = DomainNorm(16, domains)
    model = nn.Sequential(nn.Linear(12, 16), norm, nn.ReLU(), nn.Linear(16, 5)).to(device)
    opt, (x, y) = torch.optim.SGD(model.parameters(), 0.05), _batch(device)

    def step():
        following = (domains.index(norm.domain) + 1) % len(domains)
        norm.domain = domains[following]  # guilty: no replay changes it
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def domains_all_in_one_step(device):
    """AdvProp: the other norm is chosen for the second half, and given back."""
    norm = DomainNorm(16, ["clean", "adversarial"])
    model = nn.Sequential(nn.Linear(12, 16), norm, nn.ReLU(), nn.Linear(16, 5)).to(device)
    opt, (x, y) = torch.optim.SGD(model.parameters(), 0.05), _batch(device)

    def loss_in(domain, x):
        before, norm.domain = norm.domain, domain
        try:
            return functional.cross_entropy(model(x), y)
        finally:
            norm.domain = before

    def step():
        opt.zero_grad()
        d = torch.zeros_like(x, requires_grad=True)
        (g,) = torch.autograd.grad(loss_in("adversarial", x + d), d)
        loss = loss_in("clean", x) + loss_in("adversarial", x + 0.05 * g.sign())
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def gradient_noise_of_a_closure(device):
    """The noise of the gradients shrinks with a step that only the host counts."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    t = 0

    def noisy(g):
        deviation = math.sqrt(0.01 / (1 + t) ** 0.55)
        return g + deviation * torch.randn_like(g)  # guilty: the deviation of the capture

    for p in model.parameters():
        p.register_hook(noisy)

    def step():
        nonlocal t
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        t += 1  # guilty: no replay counts
        return loss.detach()

    return step


def gradient_noise_of_a_device_step(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    t = torch.zeros((), device=device)
    for p in model.parameters():
        p.register_hook(lambda g: g + (0.01 / (1 + t) ** 0.55).sqrt() * torch.randn_like(g))

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        t.add_(1)
        return loss.detach()

    return step


class MultiCropWrapper(nn.Module):
    """Of DINO: crops of the same size go through the backbone together."""

    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, crops):
        sizes = torch.tensor([crop.shape[-1] for crop in crops])
        ends = torch.cumsum(torch.unique_consecutive(sizes, return_counts=True)[1], 0)
        start, output = 0, torch.empty(0, device=crops[0].device)
        for end in ends:
            output = torch.cat((output, self.backbone(torch.cat(crops[start:end]))))
            start = end
        return self.head(output)


def crops_grouped_by_their_size(device):
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = MultiCropWrapper(backbone, nn.Linear(8, 6)).to(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    image = torch.randn(4, 3, 16, 16, device=device)

    def step():
        opt.zero_grad()
        crops = [image, image.flip(-1), *(image[:, :, i : i + 8, i : i + 8] for i in (0, 3, 7))]
        logits = model(crops).chunk(5)
        target = ((logits[0] + logits[1]) / 2).detach().div(0.05).softmax(1)
        loss = sum(functional.cross_entropy(each, target) for each in logits) / 5
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def inner_adam_is_new_in_each_call(device):
    """Reptile: the inner optimizer and its moments begin anew for each task."""
    model, (x, y) = _net(device), _batch(device)
    fast = copy.deepcopy(model)

    def step():
        with torch.no_grad():
            for p, slow in zip(fast.parameters(), model.parameters(), strict=True):
                p.copy_(slow)
        inner = torch.optim.Adam(fast.parameters(), lr=0.01, capturable=True)
        for _ in range(3):
            inner.zero_grad()
            loss = functional.cross_entropy(fast(x), y)
            loss.backward()
            inner.step()
        with torch.no_grad():
            for p, slow in zip(fast.parameters(), model.parameters(), strict=True):
                slow.lerp_(p, 0.5)
        return loss.detach()

    return step


def average_is_lent_and_given_back(device):
    """The average takes the place of the weights for one forward, by exchanging `.data`."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    averages = [p.detach().clone() for p in model.parameters()]

    def exchange():
        for i, p in enumerate(model.parameters()):
            p.data, averages[i] = averages[i], p.data

    def step():
        opt.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, [p.data for p in model.parameters()], 0.1)
            exchange()
            loss = functional.cross_entropy(model(x), y)
            exchange()
        return loss

    return step


class MixLinear(nn.Module):
    """Mixout: the weight of a call is made, and kept as an attribute, in this call."""

    def __init__(self, inputs, outputs, p=0.3):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(outputs, inputs) * 0.1)
        self.register_buffer("target", self.raw.detach().clone())
        self.p = p
        self.weight = None

    def mix(self):
        keep = torch.rand_like(self.raw) > self.p
        mixed = torch.where(keep, self.raw, self.target)
        self.weight = (mixed - self.p * self.target) / (1 - self.p)

    def forward(self, x):
        self.mix()
        return functional.linear(x, self.weight)


def weights_mixed_with_pretrained_ones(device):
    model = nn.Sequential(MixLinear(12, 32), nn.ReLU(), MixLinear(32, 5)).to(device)
    opt, (x, y) = torch.optim.SGD(model.parameters(), 0.05), _batch(device)

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class ForwardForwardLayer(nn.Linear):
    """Each layer has an optimizer of its own and learns in its forward."""

    def learn(self, positive, negative):
        good = (torch.relu(self(positive)) ** 2).mean(1)
        bad = (torch.relu(self(negative)) ** 2).mean(1)
        loss = functional.softplus(torch.cat([2 - good, bad - 2])).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        with torch.no_grad():
            hidden = [functional.normalize(torch.relu(self(h))) for h in (positive, negative)]
        return *hidden, loss.detach()


def layers_learn_one_by_one(device):
    layers = nn.ModuleList([ForwardForwardLayer(17, 32), ForwardForwardLayer(32, 32)]).to(device)
    for layer in layers:
        layer.opt = torch.optim.SGD(layer.parameters(), 0.03)
    x, y = _batch(device)

    def step():
        right = functional.one_hot(y, 5).float()
        wrong = functional.one_hot((y + 1) % 5, 5).float()
        positive, negative = torch.cat([x, right], 1), torch.cat([x, wrong], 1)
        losses = []
        for layer in layers:
            positive, negative, loss = layer.learn(positive, negative)
            losses.append(loss)
        return torch.stack(losses)

    return step


def sparse_attention_with_a_support(device):
    """Sparsemax: the size of the support stays on the device."""
    query, key = _net(device, 12, 16), _net(device, 12, 16)
    x = torch.randn(4, 9, 12, device=device)

    def sparsemax(z):
        ordered = z.sort(-1, descending=True).values
        k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        sums = ordered.cumsum(-1)
        support = (1 + k * ordered > sums).sum(-1, keepdim=True)
        tau = (sums.gather(-1, support - 1) - 1) / support
        return (z - tau).clamp(min=0)

    def loss(x):
        scores = query(x) @ key(x).transpose(1, 2) / 4
        return (sparsemax(scores) @ x - x).square().mean()

    return loss, (x,)


def posterior_by_langevin_steps(device):
    """SGLD: the mean of the predictions is gathered as the chain goes on."""
    model, (x, y) = _net(device), _batch(device)
    mean, count = torch.zeros(16, 5, device=device), torch.zeros((), device=device)

    def step(rate=1e-3):
        loss = functional.cross_entropy(model(x), y) * 1000
        params = list(model.parameters())
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.add_(g, alpha=-rate / 2).add_(torch.randn_like(p), alpha=math.sqrt(rate) * 0.1)
            count.add_(1)
            torch.lerp(mean, model(x).softmax(1), 1 / count, out=mean)
        return mean.clone()

    return step


def targets_remembered_by_row(device):
    """ELR: the memory of a row's predictions moves in place."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    memory = torch.full((100, 5), 0.2, device=device)
    rows = torch.randperm(100, device=device)[:16]

    def step():
        opt.zero_grad()
        logits = model(x)
        p = logits.softmax(1).clamp(1e-4, 1 - 1e-4)
        with torch.no_grad():
            fresh = p / p.sum(1, keepdim=True)
            memory[rows] = 0.7 * memory[rows] + 0.3 * fresh
        penalty = (1 - (memory[rows] * p).sum(1)).log().mean()
        loss = functional.cross_entropy(logits, y) + 3 * penalty
        loss.backward()
        opt.step()
        return loss.detach()

    return step

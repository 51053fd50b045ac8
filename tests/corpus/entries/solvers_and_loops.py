"""Solvers, searches, targets and geometry: loops that research code runs inside one call."""

from __future__ import annotations

import collections
import itertools
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn


def _field(device, dim=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, dim)).to(device)


# The times are a tensor of the device, and so are the steps between them.
def ode_of_fixed_steps(device):
    f, times = _field(device), torch.linspace(0, 1, 5, device=device)

    def solve(y):
        ys = [y]
        for t0, t1 in itertools.pairwise(times):
            dt = t1 - t0
            k1 = f(y)
            k2 = f(y + dt * k1 / 3)
            k3 = f(y + dt * (k2 - k1 / 3))
            k4 = f(y + dt * (k1 - k2 + k3))
            y = y + (k1 + 3 * (k2 + k3) + k4) * dt * 0.125
            ys.append(y)
        return torch.stack(ys)

    return solve, (torch.randn(3, 6, device=device),)


# The step is accepted if the error is small, and its size follows the error.
def ode_of_adaptive_steps(device):
    f = _field(device)

    @torch.no_grad()
    def solve(y):
        t, dt = 0.0, 0.25
        while t < 1.0:
            k1 = f(y)
            k2 = f(y + dt * k1)
            error = (dt * (k2 - k1) / 2).abs().max() / 0.05
            if error <= 1:  # guilty: the truth of a tensor
                t, y = t + dt, y + dt * (k1 + k2) / 2
            dt = min(dt * 1.5, 1.0 - t) if t < 1.0 else dt
        return y

    return solve, (torch.randn(3, 6, device=device),)


class _Implicit(torch.autograd.Function):
    """A fixed point, and its gradient by another one; both of known length."""

    @staticmethod
    def forward(ctx, x, weight):
        z = torch.zeros_like(x)
        for _ in range(8):
            z = torch.tanh(z @ weight.t() + x)
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    def backward(ctx, grad):
        z, weight = ctx.saved_tensors
        slope, g = 1 - z**2, grad
        for _ in range(8):
            g = (g * slope) @ weight + grad
        g = g * slope
        return g, g.t() @ z


def fixed_point_of_known_length(device):
    weight = nn.Parameter(torch.randn(6, 6, device=device) / 12)

    def forward(x):
        return _Implicit.apply(x, weight).square().sum()

    return forward, (torch.randn(3, 6, device=device, requires_grad=True),)


# The solver of Anderson ends when the residual is small.
def fixed_point_until_it_converges(device):
    layer = nn.Linear(6, 6).to(device)

    @torch.no_grad()
    def forward(x, tol=1e-2, most=30):
        z = torch.zeros_like(x)
        for _ in range(most):
            new = torch.tanh(layer(z) * 0.3 + x)
            residual = (new - z).norm() / (1e-5 + new.norm())
            z = new
            if residual.item() < tol:  # guilty: .item()
                break
        return z

    return forward, (torch.randn(3, 6, device=device),)


# Beams of fixed width for a fixed number of tokens; caches are reordered by an index.
def beams_of_fixed_width(device):
    vocabulary, width, dim = 12, 3, 8
    embed, cell = nn.Embedding(vocabulary, dim).to(device), nn.LSTMCell(dim, dim).to(device)
    head = nn.Linear(dim, vocabulary).to(device)

    @torch.no_grad()
    def search(start):
        b = start.shape[0]
        tokens = start[:, None].expand(b, width).reshape(-1)
        h = c = torch.zeros(b * width, dim, device=start.device)
        scores = torch.zeros(b, width, device=start.device)
        scores[:, 1:] = -1e9
        history = []
        offsets = torch.arange(b, device=start.device)[:, None] * width
        for _ in range(4):
            h, c = cell(embed(tokens), (h, c))
            log_p = head(h).log_softmax(-1).view(b, width, -1)
            scores, index = (scores[..., None] + log_p).flatten(1).topk(width, dim=-1)
            parent = (offsets + index // vocabulary).flatten()
            tokens = (index % vocabulary).flatten()
            h, c = h.index_select(0, parent), c[parent]
            history = [each.index_select(0, parent) for each in history] + [tokens]
        return torch.stack(history, -1).view(b, width, -1), scores

    return search, (torch.randint(vocabulary, (2,), device=device),)


class _Hypotheses:
    """The best finished beams of one sentence."""

    def __init__(self, size):
        self.size, self.beams = size, []

    def add(self, tokens, score):
        self.beams = sorted([*self.beams, (score, tokens)], key=lambda each: -each[0])[: self.size]


# Finished beams are kept in lists of the host.
def beams_kept_on_the_host(device):
    embed, cell = nn.Embedding(12, 8).to(device), nn.GRUCell(8, 8).to(device)
    head = nn.Linear(8, 12).to(device)

    @torch.no_grad()
    def search(start):
        finished = _Hypotheses(2)
        h, tokens = torch.zeros(3, 8, device=start.device), start.expand(3)
        for _ in range(3):
            h = cell(embed(tokens), h)
            best, tokens = head(h).log_softmax(-1).max(-1)
            for score, token in zip(best.tolist(), tokens, strict=True):  # guilty: waits
                finished.add(token, score)
        return torch.stack([token for _score, token in finished.beams])

    return search, (torch.randint(12, (1,), device=device),)


# A target network that is replaced now and then.
def target_replaced_now_and_then(device):
    q, target = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.SGD(q.parameters(), lr=0.05)
    obs, following = torch.randn(8, 6, device=device), torch.randn(8, 6, device=device)
    actions, rewards = torch.randint(4, (8, 1), device=device), torch.randn(8, 1, device=device)
    updates = itertools.count()

    def step():
        with torch.no_grad():
            wanted = rewards + 0.99 * target(following).max(1, keepdim=True).values
        loss = functional.smooth_l1_loss(q(obs).gather(1, actions), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if next(updates) % 100 == 99:  # guilty: never in a replay
            target.load_state_dict(q.state_dict())
        return loss

    return step


# The target is replaced in each step, by copies in place.
def target_replaced_in_each_step(device):
    q, target = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.05)
    obs, following = torch.randn(8, 6, device=device), torch.randn(8, 6, device=device)
    actions, rewards = torch.randint(4, (8, 1), device=device), torch.randn(8, 1, device=device)

    def step():
        with torch.no_grad():
            best = q(following).argmax(1, keepdim=True)
            wanted = rewards + 0.99 * target(following).gather(1, best)
        loss = functional.smooth_l1_loss(q(obs).gather(1, actions), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target.load_state_dict(q.state_dict())
        return loss

    return step


# The distribution of returns is projected onto its atoms by sums into rows.
def projection_of_a_distribution(device):
    atoms, low, high = 11, -5.0, 5.0
    support = torch.linspace(low, high, atoms, device=device)
    net = nn.Linear(6, 4 * atoms).to(device)

    @torch.no_grad()
    def project(obs, rewards):
        p = net(obs).view(-1, 4, atoms).softmax(-1)
        best = (p * support).sum(-1).argmax(-1)
        p = p[torch.arange(len(obs), device=obs.device), best]
        place = ((rewards[:, None] + 0.99 * support).clamp(low, high) - low) / (high - low)
        place = (place * (atoms - 1)).clamp(0, atoms - 1)
        lower, upper = place.floor().long(), place.ceil().long()
        lower = torch.where((lower == upper) & (lower > 0), lower - 1, lower)
        upper = torch.where((lower == upper) & (upper < atoms - 1), upper + 1, upper)
        out = torch.zeros_like(p)
        out.scatter_add_(1, lower, p * (upper - place))
        out.scatter_add_(1, upper, p * (place - lower))
        return out

    return project, (torch.randn(5, 6, device=device), torch.randn(5, device=device))


def _symlog(x):
    return torch.sign(x) * torch.log1p(x.abs())


# Two neighbouring bins for each value, by a search in a sorted table.
def two_hot_targets(device):
    bins, net = torch.linspace(-4, 4, 17, device=device), nn.Linear(6, 17).to(device)

    def forward(x, value):
        y = _symlog(value).clamp(-4, 4)
        above = torch.searchsorted(bins, y).clamp(1, len(bins) - 1)
        below = above - 1
        share = (y - bins[below]) / (bins[above] - bins[below])
        target = functional.one_hot(below, 17) * (1 - share)[:, None]
        target = target + functional.one_hot(above, 17) * share[:, None]
        return -(target * net(x).log_softmax(-1)).sum(-1).mean()

    return forward, (torch.randn(5, 6, device=device), torch.randn(5, device=device) * 4)


@dataclass
class _Replay:
    """Observations with priorities, in lists and a deque."""

    priorities: collections.deque
    alpha: float = 0.6

    def weights(self):
        total = sum(p**self.alpha for p in self.priorities)
        return [p**self.alpha / total for p in self.priorities]

    def update(self, errors):
        for error in errors:
            self.priorities.append(abs(float(error)) + 1e-6)  # guilty: float() of a tensor


def priorities_of_the_host(device):
    net, memory = nn.Linear(6, 1).to(device), _Replay(collections.deque([1.0] * 8, maxlen=8))

    @torch.no_grad()
    def step(x, y):
        error = net(x).squeeze(-1) - y
        memory.update(error)
        return error.square().mean()

    return step, (torch.randn(8, 6, device=device), torch.randn(8, device=device))


class _DeformableAttention(nn.Module):
    """Samples each level of a pyramid; the sizes of the levels come with the call."""

    def __init__(self, dim=8, levels=2, points=2):
        super().__init__()
        self.levels, self.points = levels, points
        self.offsets = nn.Linear(dim, levels * points * 2)
        self.weights = nn.Linear(dim, levels * points)
        self.value = nn.Linear(dim, dim)

    def forward(self, query, reference, memory, shapes):
        n, q, d = query.shape
        value = self.value(memory)
        parts = value.split([h * w for h, w in shapes], dim=1)  # guilty: sizes of the device
        offsets = self.offsets(query).view(n, q, self.levels, self.points, 2)
        weights = self.weights(query).softmax(-1).view(n, q, self.levels, self.points)
        out = 0
        for level, (h, w) in enumerate(shapes):
            image = parts[level].transpose(1, 2).reshape(n, d, h, w)
            grid = 2 * (reference[:, :, None] + offsets[:, :, level] * 0.1) - 1
            sampled = functional.grid_sample(image, grid, align_corners=False)
            out = out + (sampled * weights[:, None, :, level]).sum(-1)
        return out.transpose(1, 2)


def sizes_of_levels_as_a_tensor(device):
    model = _DeformableAttention().to(device)
    shapes = torch.tensor([[4, 4], [2, 2]], device=device)
    inputs = torch.randn(1, 3, 8), torch.rand(1, 3, 2), torch.randn(1, 20, 8)

    @torch.no_grad()
    def forward(query, reference, memory):
        return model(query, reference, memory, shapes)

    return forward, tuple(each.to(device) for each in inputs)


# The sizes are numbers of Python, in a list.
def sizes_of_levels_as_numbers(device):
    torch.manual_seed(0)
    project, offsets = nn.Linear(8, 8).to(device), nn.Linear(8, 4).to(device)
    shapes = [(4, 4), (2, 2)]

    @torch.no_grad()
    def forward(query, reference, memory):
        value, n = project(memory), query.shape[0]
        out = torch.zeros_like(query)
        shift = offsets(query).view(n, -1, 2, 2).tanh()
        for level, part in enumerate(value.split([h * w for h, w in shapes], dim=1)):
            h, w = shapes[level]
            image = part.transpose(1, 2).reshape(n, 8, h, w)
            scale = torch.as_tensor([w, h]).prod().item()
            grid = 2 * (reference + shift[:, :, level] / scale)[:, :, None] - 1
            sampled = functional.grid_sample(image, grid, align_corners=False)
            out = out + sampled.squeeze(-1).transpose(1, 2)
        return out

    inputs = torch.randn(1, 3, 8), torch.rand(1, 3, 2), torch.randn(1, 20, 8)
    return forward, tuple(each.to(device) for each in inputs)


# Splats outside of the view are left out, and how many there are is in the data.
def splats_in_the_view(device):
    means = nn.Parameter(torch.randn(20, 3, device=device))
    colors = nn.Parameter(torch.rand(20, 3, device=device))

    @torch.no_grad()
    def render(camera):
        p = means @ camera
        seen = (p[:, 2] > 0) & (p[:, :2].abs() < 1.5 * p[:, 2:3].abs()).all(1)
        p, c = p[seen], colors[seen]  # guilty: as many as the data says
        order = p[:, 2].argsort()
        alpha = torch.exp(-p[order, :2].square().sum(1))
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:1]), 1 - alpha[:-1]]), 0)
        return (alpha * clear)[:, None].mul(c[order]).sum(0)

    return render, (torch.eye(3, device=device),)


# All splats are drawn, those outside with no weight.
def splats_by_weights(device):
    means = nn.Parameter(torch.randn(20, 3, device=device))
    colors = nn.Parameter(torch.rand(20, 3, device=device))

    @torch.no_grad()
    def render(camera):
        p = means @ camera
        seen = (p[:, 2] > 0) & (p[:, :2].abs() < 1.5 * p[:, 2:3].abs()).all(1)
        order = torch.where(seen, p[:, 2], torch.inf).argsort(stable=True)
        alpha = (torch.exp(-p[:, :2].square().sum(1)) * seen)[order]
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:1]), 1 - alpha[:-1]]), 0)
        return (alpha * clear)[:, None].mul(colors[order]).sum(0)

    return render, (torch.eye(3, device=device),)


# The lengths are on the host and in order, so that packing copies nothing.
def packed_rows_in_order(device):
    layer, lengths = nn.Linear(6, 8).to(device), torch.tensor([5, 3, 2])

    @torch.no_grad()
    def forward(x):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
        packed = packed._replace(data=layer(packed.data).relu())
        return rnn.pad_packed_sequence(packed, batch_first=True)[0]

    return forward, (torch.randn(3, 5, 6, device=device),)


# The rows are sorted on the host, and the order is copied to the device.
def packed_rows_in_any_order(device):
    layer, lengths = nn.Linear(6, 8).to(device), torch.tensor([2, 5, 3])

    @torch.no_grad()
    def forward(x):
        packed = rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )  # guilty: copies the order to the device
        packed = packed._replace(data=layer(packed.data).relu())
        return rnn.pad_packed_sequence(packed, batch_first=True)[0]

    return forward, (torch.randn(3, 5, 6, device=device),)


# The power iteration of a norm by hand, whose vector is an attribute.
class _SpectralLinear(nn.Module):
    def __init__(self, device, inp=6, out=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, inp, device=device))
        self.u = functional.normalize(torch.randn(out, device=device), dim=0)

    def forward(self, x):
        with torch.no_grad():
            v = functional.normalize(self.weight.t() @ self.u, dim=0)  # guilty: of the capture
            self.u = functional.normalize(self.weight @ v, dim=0)  # guilty: another tensor
        sigma = self.u @ self.weight @ v
        return functional.linear(x, self.weight / sigma)


def spectral_norm_by_hand(device):
    return _SpectralLinear(device), (torch.randn(3, 6, device=device),)


# The window of a stream is shifted in place.
def stream_with_a_window(device):
    conv, window = nn.Conv1d(4, 8, 5).to(device), torch.zeros(1, 4, 4, device=device)

    @torch.no_grad()
    def forward(chunk):
        x = torch.cat([window, chunk], -1)
        y = conv(x)
        window.copy_(x[..., -window.shape[-1] :])
        return y.relu()

    return forward, (torch.randn(1, 4, 6, device=device),)


# The rate is multiplied after each step.
def rate_multiplied_in_the_step(device):
    f, x = _field(device), torch.randn(3, 6, device=device)
    optimizer = torch.optim.SGD(f.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = f(x).square().mean()
        loss.backward()
        optimizer.step()  # guilty: the rate of the capture
        for group in optimizer.param_groups:
            group["lr"] *= 0.999  # guilty: no replay multiplies
        return loss

    return step


# The best action by many random plans, refined a few times: all of it on the device.
def plans_by_cross_entropy(device):
    model, plans, horizon = _field(device, 6), 16, 4

    @torch.no_grad()
    def plan(state):
        mean, std = torch.zeros(horizon, 2, device=device), torch.ones(horizon, 2, device=device)
        for _ in range(3):
            actions = (mean + std * torch.randn(plans, horizon, 2, device=device)).clamp(-1, 1)
            x, returns = state.expand(plans, -1), torch.zeros(plans, device=device)
            for t in range(horizon):
                x = x + model(x + functional.pad(actions[:, t], (0, 4)))
                returns -= x.square().sum(-1)
            best = returns.topk(4).indices
            elites = actions[best]
            weight = (returns[best] - returns[best].max()).exp()[:, None, None]
            mean = (weight * elites).sum(0) / weight.sum()
            std = ((weight * (elites - mean) ** 2).sum(0) / weight.sum()).sqrt().clamp(0.05, 2)
        return mean[0]

    return plan, (torch.randn(1, 6, device=device),)

"""Sequence models written out by hand: state spaces, experts, caches of keys, ways to sample."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


class _RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class _MambaBlock(nn.Module):
    """The selective scan as a loop over time."""

    def __init__(self, d_model=16, d_state=4, d_conv=4, expand=2):
        super().__init__()
        self.d_inner = expand * d_model
        self.dt_rank = math.ceil(d_model / 16)
        self.d_state = d_state
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv = nn.Conv1d(
            self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1
        )
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        states = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(states))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, x):
        _b, length, _d = x.shape
        x, res = self.in_proj(x).split([self.d_inner, self.d_inner], dim=-1)
        x = self.conv(x.transpose(1, 2))[:, :, :length].transpose(1, 2)
        x = functional.silu(x)
        return self.out_proj(self.ssm(x) * functional.silu(res))

    def ssm(self, x):
        a = -torch.exp(self.A_log.float())
        delta, b, c = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        delta = functional.softplus(self.dt_proj(delta))
        delta_a = torch.exp(torch.einsum("bld,dn->bldn", delta, a))
        delta_bu = torch.einsum("bld,bln,bld->bldn", delta, b, x)
        state = torch.zeros(x.shape[0], self.d_inner, self.d_state, device=x.device)
        ys = []
        for i in range(x.shape[1]):
            state = delta_a[:, i] * state + delta_bu[:, i]
            ys.append(torch.einsum("bdn,bn->bd", state, c[:, i]))
        return torch.stack(ys, dim=1) + x * self.D


def mamba_as_a_loop(device):
    model = nn.Sequential(_RMSNorm(16), _MambaBlock()).to(device)
    return model, (torch.randn(2, 6, 16, device=device),)


def _segment_sums(x):
    length = x.size(-1)
    x = x.unsqueeze(-1).expand(*x.shape, length)
    below = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device), diagonal=-1)
    x = x.masked_fill(~below, 0)
    kept = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device))
    return torch.cumsum(x, dim=-2).masked_fill(~kept, -torch.inf)


# The state space dual form in chunks, with states handed from chunk to chunk.
def mamba_two_in_chunks(device):
    chunk, heads, width, state = 4, 2, 8, 4
    a_log = nn.Parameter(torch.zeros(heads, device=device))
    proj = nn.Linear(16, heads * (width + 1) + 2 * state).to(device)

    def forward(u):
        n, length, _ = u.shape
        x, dt, b, c = proj(u).split([heads * width, heads, state, state], dim=-1)
        dt = functional.softplus(dt)
        a = -a_log.exp() * dt
        x = x.view(n, length // chunk, chunk, heads, width) * dt.view(
            n, length // chunk, chunk, heads, 1
        )
        b, c = (t.reshape(n, length // chunk, chunk, state) for t in (b, c))
        a = a.view(n, length // chunk, chunk, heads).permute(0, 3, 1, 2)
        sums = a.cumsum(-1)
        inner = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, _segment_sums(a).exp(), x)
        decay = torch.exp(sums[..., -1:] - sums)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, decay, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        between = torch.exp(_segment_sums(functional.pad(sums[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        outer = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, sums.exp())
        return (inner + outer).reshape(n, length, heads * width)

    return forward, (torch.randn(2, 8, 16, device=device),)


class _RWKVState(nn.Module):
    """Time mixing of one token; numerator, denominator and maximum are buffers."""

    def __init__(self, dim=16, batch=2):
        super().__init__()
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.decay, self.first = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.mix = nn.Parameter(torch.full((3, dim), 0.5))
        state = torch.zeros(4, batch, dim)
        state[3] = -1e30
        self.register_buffer("state", state)

    @torch.no_grad()
    def forward(self, x):
        last, num, den, top = self.state.unbind(0)
        mixed = [x * m + last * (1 - m) for m in self.mix]
        k, v, r = self.key(mixed[0]), self.value(mixed[1]), self.receptance(mixed[2]).sigmoid()
        q = torch.maximum(top, self.first + k)
        e1, e2 = torch.exp(top - q), torch.exp(self.first + k - q)
        wkv = (e1 * num + e2 * v) / (e1 * den + e2)
        decayed = top - torch.exp(self.decay)
        q = torch.maximum(decayed, k)
        e1, e2 = torch.exp(decayed - q), torch.exp(k - q)
        self.state.copy_(torch.stack([x, e1 * num + e2 * v, e1 * den + e2, q]))
        return self.output(r * wkv)


def rwkv_of_one_token(device):
    return _RWKVState().to(device), (torch.randn(2, 16, device=device),)


# Experts of fixed capacity: a slot by a running count, and tokens over capacity go to a spare slot.
def experts_of_fixed_capacity(device):
    dim, experts, capacity = 8, 4, 6
    router = nn.Linear(dim, experts, bias=False).to(device)
    w1 = nn.Parameter(torch.randn(experts, dim, 16, device=device) / 4)
    w2 = nn.Parameter(torch.randn(experts, 16, dim, device=device) / 4)

    def forward(x):
        gates = router(x).softmax(-1)
        weight, choice = gates.max(-1)
        chosen = torch.zeros_like(gates).scatter_(1, choice[:, None], 1.0)
        place = (chosen.cumsum(0) * chosen).sum(1).long() - 1
        kept = place < capacity
        slot = torch.where(kept, choice * capacity + place, experts * capacity)
        box = x.new_zeros(experts * capacity + 1, dim).index_add(0, slot, x)
        box = box[:-1].view(experts, capacity, dim)
        y = torch.bmm(torch.bmm(box, w1).relu(), w2).view(-1, dim)
        y = torch.cat([y, y.new_zeros(1, dim)])[slot]
        balance = experts * (gates.mean(0) * chosen.mean(0)).sum()
        return x + y * weight[:, None], balance

    return forward, (torch.randn(16, dim, device=device),)


class _StaticCache(nn.Module):
    """Attention of one token; the position is a tensor of the device."""

    def __init__(self, dim=16, heads=2, kv_heads=1, length=32):
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.width, bias=False)
        shape = (2, 1, kv_heads, length, self.width)
        self.register_buffer("cache", torch.zeros(shape), persistent=False)
        angles = torch.outer(
            torch.arange(length).float(),
            10000 ** (-torch.arange(0, self.width, 2).float() / self.width),
        )
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def rotate(self, x, position):
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos[position] + turned * self.sin[position]

    @torch.no_grad()
    def forward(self, x, position):
        b = x.shape[0]
        q = self.q(x).view(b, 1, self.heads, self.width).transpose(1, 2)
        k, v = self.kv(x).view(b, 1, 2 * self.kv_heads, self.width).transpose(1, 2).chunk(2, 1)
        q, k = self.rotate(q, position), self.rotate(k, position)
        self.cache[0].index_copy_(2, position, k)
        self.cache[1].index_copy_(2, position, v)
        keys, values = (c.repeat_interleave(self.heads // self.kv_heads, dim=1) for c in self.cache)
        seen = torch.arange(keys.shape[2], device=x.device) <= position
        y = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=seen[None, None, None]
        )
        return y.transpose(1, 2).reshape(b, 1, -1)


def grouped_queries_with_a_static_cache(device):
    model = _StaticCache().to(device)
    position = torch.tensor([3], device=device)
    return model, (torch.randn(1, 1, 16, device=device), position)


# How many guesses hold is a tensor; the tokens after them are padded.
def guesses_are_judged_on_the_device(device):
    draft, target = (nn.Linear(16, 32).to(device) for _ in range(2))

    @torch.no_grad()
    def forward(hidden, guesses):
        p = draft(hidden).softmax(-1).gather(-1, guesses[:, None]).squeeze(-1)
        q = target(hidden).softmax(-1).gather(-1, guesses[:, None]).squeeze(-1)
        accept = torch.rand_like(p) < (q / p).clamp(max=1)
        count = accept.long().cumprod(0).sum()
        steps = torch.arange(len(guesses), device=guesses.device)
        return torch.where(steps < count, guesses, -1), count

    guesses = torch.randint(32, (5,), device=device)
    return forward, (torch.randn(5, 16, device=device), guesses)


# One token by exponential noise, from the smallest set of tokens that has most of the mass.
def nucleus_by_exponential_noise(device):
    head = nn.Linear(16, 32).to(device)

    @torch.no_grad()
    def forward(x, temperature: float = 0.8, top_k: int = 12, top_p: float = 0.9):
        logits = head(x) / max(temperature, 1e-5)
        v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
        least = v[:, [-1]]  # guilty: a list as an index is copied from the host
        logits = torch.where(logits < least, -float("inf"), logits)
        ordered, order = logits.sort(descending=True)
        mass = ordered.softmax(-1).cumsum(-1)
        drop = mass - ordered.softmax(-1) > top_p
        logits = logits.masked_fill(drop.scatter(1, order, drop), -float("inf"))
        probs = logits.softmax(-1)
        noise = torch.empty_like(probs).exponential_(1)
        return torch.argmax(probs / noise, dim=-1, keepdim=True).to(dtype=torch.int)

    return forward, (torch.randn(3, 16, device=device),)


class _Memory(NamedTuple):
    c: torch.Tensor
    n: torch.Tensor
    m: torch.Tensor


# The stabilised gates of xLSTM; its state is a named tuple that goes in and comes out.
def matrix_memory_as_a_tuple(device):
    qkv, gates = nn.Linear(8, 24).to(device), nn.Linear(8, 2).to(device)

    def cell(x, memory):
        q, k, v = qkv(x).chunk(3, -1)
        i, f = gates(x).unbind(-1)
        f = functional.logsigmoid(f)
        m = torch.maximum(f + memory.m, i)
        i, f = torch.exp(i - m)[:, None], torch.exp(f + memory.m - m)[:, None]
        c = f[..., None] * memory.c + i[..., None] * torch.einsum("bi,bj->bij", v, k / 8**0.5)
        n = f * memory.n + i * k / 8**0.5
        h = torch.einsum("bij,bj->bi", c, q)
        h = h / torch.maximum((n * q).sum(-1, keepdim=True).abs(), torch.exp(-m)[:, None])
        return h, _Memory(c, n, m)

    def forward(xs, memory):
        hs = []
        for x in xs.unbind(1):
            h, memory = cell(x, memory)
            hs.append(h)
        return torch.stack(hs, 1), memory

    start = _Memory(
        torch.zeros(2, 8, 8, device=device),
        torch.zeros(2, 8, device=device),
        torch.zeros(2, device=device),
    )
    return forward, (torch.randn(2, 4, 8, device=device), start)


# The window's mask and the slopes of the heads are made on the device in each call.
def windows_with_slopes(device):
    heads, window = 4, 3
    qkv = nn.Linear(16, 48).to(device)

    def forward(x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, heads, d // heads).transpose(1, 2) for y in qkv(x).chunk(3, -1))
        at = torch.arange(t, device=x.device)
        distance = at[:, None] - at[None, :]
        slopes = torch.pow(2.0, -8 * torch.arange(1, heads + 1, device=x.device) / heads)
        bias = -slopes[:, None, None] * distance.abs()
        bias = bias.masked_fill((distance < 0) | (distance >= window), float("-inf"))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // heads) + bias
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)

    return forward, (torch.randn(2, 6, 16, device=device),)


# Each expert chooses as many tokens as it has room for, so every size is known.
def experts_choose_their_tokens(device):
    gate = nn.Linear(8, 4, bias=False).to(device)
    w1 = nn.Parameter(torch.randn(4, 8, 16, device=device) / 4)
    w2 = nn.Parameter(torch.randn(4, 16, 8, device=device) / 4)

    def forward(x):
        weight, rows = gate(x).softmax(-1).t().topk(3, dim=-1)
        y = torch.einsum("ekd,edf->ekf", x[rows], w1).relu() @ w2
        y = (y * weight[..., None]).flatten(0, 1)
        return x.index_add(0, rows.flatten(), y)

    return forward, (torch.randn(12, 8, device=device),)


class _SparseExperts(nn.Module):
    def __init__(self, dim=8, experts=4, top_k=2):
        super().__init__()
        self.gate, self.top_k = nn.Linear(dim, experts, bias=False), top_k
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 16), nn.SiLU(), nn.Linear(16, dim)) for _ in range(experts)
        )

    def forward(self, x):
        weights = functional.softmax(self.gate(x), dim=1, dtype=torch.float)
        weights, chosen = torch.topk(weights, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == index)  # guilty: how many tokens, by the data
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, nth, None])
        return out


def each_expert_takes_its_tokens(device):
    return _SparseExperts().to(device), (torch.randn(12, 8, device=device),)


class _DynamicRotary(nn.Module):
    """Grows its base when a position lies beyond what was cached."""

    def __init__(self, width=8, length=64):
        super().__init__()
        self.width, self.length, self.cached = width, length, length
        self.register_buffer("frequency", self.frequencies(10000.0), persistent=False)

    def frequencies(self, base, device=None):
        return base ** (-torch.arange(0, self.width, 2, device=device).float() / self.width)

    @torch.no_grad()
    def forward(self, x, positions):
        longest = torch.max(positions) + 1
        if longest > self.cached:  # guilty: the truth of a tensor
            base = 10000.0 * (2 * longest / self.length - 1) ** (self.width / (self.width - 2))
            self.register_buffer("frequency", self.frequencies(base, x.device), persistent=False)
            self.cached = longest
        angles = positions[:, :, None].float() * self.frequency
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotary_that_grows_with_positions(device):
    rotary, q = _DynamicRotary().to(device), nn.Linear(8, 8).to(device)

    def forward(x, positions):
        cos, sin = rotary(x, positions)
        y = q(x)
        return y * cos + torch.cat([-y[..., 4:], y[..., :4]], -1) * sin

    positions = torch.arange(6, device=device)[None]
    return forward, (torch.randn(1, 6, 8, device=device), positions)


class _CountingCache(nn.Module):
    def __init__(self, dim=8, length=256):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, length, dim), persistent=False)
        self.register_buffer("values", torch.zeros(1, length, dim), persistent=False)
        self.seen = 0

    @torch.no_grad()
    def forward(self, x):
        start, end = self.seen, self.seen + x.shape[1]
        self.keys[:, start:end] = self.k(x)  # guilty: the slot of the capture
        self.values[:, start:end] = self.v(x)  # guilty: the slot of the capture
        self.seen = end  # guilty: no replay counts
        keys, values = self.keys[:, :end], self.values[:, :end]  # guilty: the length of the capture
        return functional.scaled_dot_product_attention(self.q(x), keys, values)


def cache_that_counts_in_python(device):
    return _CountingCache().to(device), (torch.randn(1, 1, 8, device=device),)


class _GrowingCache:
    """One tensor a layer, to which each call appends."""

    def __init__(self):
        self.keys, self.values = [], []

    def update(self, k, v, layer):
        if len(self.keys) <= layer:
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k], dim=-2)  # guilty: grows
            self.values[layer] = torch.cat([self.values[layer], v], dim=-2)  # guilty: grows
        return self.keys[layer], self.values[layer]


def cache_that_appends(device):
    layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2)).to(device)
    cache = _GrowingCache()

    @torch.no_grad()
    def forward(x):
        for i, layer in enumerate(layers):
            q, k, v = layer(x).chunk(3, -1)
            k, v = cache.update(k, v, i)
            x = x + functional.scaled_dot_product_attention(q, k, v)
        return x

    return forward, (torch.randn(1, 1, 8, device=device),)


# Stops as soon as each row has ended.
def generates_until_all_have_ended(device):
    embed, cell = nn.Embedding(16, 8).to(device), nn.GRUCell(8, 8).to(device)
    head, end = nn.Linear(8, 16).to(device), 0

    @torch.no_grad()
    def generate(token):
        h = torch.zeros(token.shape[0], 8, device=token.device)
        done = torch.zeros_like(token, dtype=torch.bool)
        out = []
        for _ in range(6):
            h = cell(embed(token), h)
            token = torch.where(done, end, head(h).argmax(-1))
            done = done | (token == end)
            out.append(token)
            if done.all():  # guilty: the truth of a tensor
                break
        return torch.stack(out, 1)

    return generate, (torch.randint(1, 16, (3,), device=device),)


class _SwitchLayer(nn.Module):
    """Collects its balance losses, and the trainer adds them up but clears nothing."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.losses = []

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        self.losses.append(gates.mean(0).square().sum().detach() * 4)  # guilty: no replay appends
        return x * gates.max(-1, keepdim=True).values


def balance_losses_are_never_cleared(device):
    layer = _SwitchLayer().to(device)

    @torch.no_grad()
    def forward(x):
        y = layer(x)
        return y.square().mean() + 0.01 * sum(layer.losses)  # guilty: the losses of the capture

    return forward, (torch.randn(6, 8, device=device),)


# The number of accepted guesses decides how many tokens are returned.
def guesses_are_cut_on_the_host(device):
    target = nn.Linear(16, 32).to(device)

    @torch.no_grad()
    def forward(hidden, guesses):
        best = target(hidden).argmax(-1)
        same = (best[:-1] == guesses).long()
        n = int(same.cumprod(0).sum())  # guilty: int() of a tensor
        return torch.cat([guesses[:n], best[n : n + 1]])

    guesses = torch.randint(32, (4,), device=device)
    return forward, (torch.randn(5, 16, device=device), guesses)


# The penalty of repetition for each token that was seen, as a set of Python.
def repetition_penalty_by_a_set(device):
    head = nn.Linear(16, 32).to(device)

    @torch.no_grad()
    def forward(x, history):
        logits = head(x)
        for row, seen in enumerate(history):
            for token in set(seen.tolist()):  # guilty: waits for the tokens
                score = logits[row, token]
                logits[row, token] = torch.where(score < 0, score * 1.2, score / 1.2)
        return logits.softmax(-1)

    history = torch.randint(32, (2, 5), device=device)
    return forward, (torch.randn(2, 16, device=device), history)


class _JitteredRouter(nn.Module):
    def __init__(self, eps=0.01):
        super().__init__()
        self.gate, self.eps = nn.Linear(8, 4), eps

    def forward(self, x):
        if self.training and self.eps > 0:
            noise = torch.empty(x.shape).uniform_(1.0 - self.eps, 1.0 + self.eps)
            x = x * noise.to(x.device)  # guilty: drawn on the host, copied from pageable memory
        return self.gate(x).softmax(-1).topk(2)


def router_with_host_jitter(device):
    return _JitteredRouter().to(device), (torch.randn(6, 8, device=device),)


class _MambaStep(nn.Module):
    """One token of the convolution before the scan; the window moves on."""

    def __init__(self, dim=8, width=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, width))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("window", torch.zeros(2, dim, width), persistent=False)

    @torch.no_grad()
    def forward(self, x):
        window = torch.roll(self.window, shifts=-1, dims=-1)  # guilty: the window of the capture
        window[:, :, -1] = x
        self.window = window  # guilty: another tensor, which no replay reads
        return functional.silu((window * self.weight).sum(-1) + self.bias)


def convolution_window_is_rebound(device):
    return _MambaStep().to(device), (torch.randn(2, 8, device=device),)

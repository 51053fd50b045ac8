"""Parts of language models: key-value caches, routers of experts, samplers, adapters, quantised
layers. What a cache or a counter of the host decides is decided once, at the capture."""

from __future__ import annotations

import functools
import math

import torch
from torch import nn
from torch.nn import functional


class _SlidingLayer:
    """The cache of one layer with a window, which counts the tokens on the host."""

    def __init__(self, window, device):
        self.keys = torch.zeros(1, 2, window, 8, device=device)
        self.values = torch.zeros(1, 2, window, 8, device=device)
        self.window, self.seen = window, 0

    def update(self, k, v, position):
        full = self.seen >= self.window
        self.seen += k.shape[-2]  # guilty: no replay counts the tokens
        if full:  # guilty: the branch of the capture, when the window was not full
            self.keys.copy_(torch.cat((self.keys[:, :, 1:], k), 2))
            self.values.copy_(torch.cat((self.values[:, :, 1:], v), 2))
        else:
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
        return self.keys, self.values


def window_filled_on_the_host(device):
    cache = _SlidingLayer(600, device)
    qkv = nn.Linear(16, 48).to(device)
    position = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step(x):
        q, k, v = (t.view(1, 1, 2, 8).transpose(1, 2) for t in qkv(x).chunk(3, -1))
        keys, values = cache.update(k, v, position)
        position.add_(1).clamp_(max=599)
        return functional.scaled_dot_product_attention(q, keys, values)

    return step, (torch.randn(1, 1, 16, device=device),)


# The roll and the slot are chosen on the device: the same kernels for every length.
def window_filled_on_the_device(device):
    keys = torch.zeros(1, 2, 8, 8, device=device)
    seen = torch.zeros((), dtype=torch.int64, device=device)
    slots = torch.arange(8, device=device)
    project = nn.Linear(16, 32).to(device)

    @torch.no_grad()
    def step(x):
        q, k = (t.view(1, 1, 2, 8).transpose(1, 2) for t in project(x).chunk(2, -1))
        moved = torch.where(seen >= 8, keys.roll(-1, 2), keys)
        slot = (slots == seen.clamp(max=7)).view(1, 1, 8, 1)
        keys.copy_(torch.where(slot, k, moved))
        seen.add_(1)
        bias = torch.where(slots < seen, 0.0, -math.inf)
        return functional.scaled_dot_product_attention(
            q, keys, keys, attn_mask=bias.view(1, 1, 1, 8)
        )

    return step, (torch.randn(1, 1, 16, device=device),)


class _ResidualCache(nn.Module):
    """Keeps the last tokens as they are, and quantises them by blocks."""

    def __init__(self, block):
        super().__init__()
        self.block, self.pending = block, 0
        self.register_buffer("residual", torch.zeros(block, 16))
        self.register_buffer("coarse", torch.zeros(block, 16))

    def forward(self, x, slot):
        self.residual.index_copy_(0, slot, x)
        self.pending += 1  # guilty: no replay counts
        if self.pending == self.block:  # guilty: never true in a replay
            scale = self.residual.abs().amax(-1, keepdim=True) / 7
            self.coarse.copy_((self.residual / (scale + 1e-6)).round() * scale)
            self.pending = 0
        return self.residual.sum(0) + self.coarse.sum(0)


def quantises_a_full_block(device):
    cache = _ResidualCache(500).to(device)
    slot = torch.zeros(1, dtype=torch.int64, device=device)
    return cache, (torch.randn(1, 16, device=device), slot)


# The same step in every call: quantises what it just wrote, and counts on the device.
def quantises_each_token(device):
    codes = torch.zeros(32, 16, dtype=torch.int8, device=device)
    scales = torch.ones(32, 1, device=device)
    slot = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step(x):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        codes.index_copy_(0, slot, (x / scale).round().to(torch.int8))
        scales.index_copy_(0, slot, scale)
        slot.add_(1).remainder_(32)
        return (codes.float() * scales).mean(0)

    return step, (torch.randn(1, 16, device=device),)


class _BiasedRouter(nn.Module):
    """A router that balances its experts by a bias instead of a loss."""

    def __init__(self, *, rebinds):
        super().__init__()
        self.gate, self.rebinds = nn.Linear(16, 4, bias=False), rebinds
        self.experts = nn.Parameter(torch.randn(4, 16, 16) / 4)
        self.register_buffer("bias", torch.zeros(4))

    def route(self, x):
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.bias).topk(2, -1).indices
        weights = scores.gather(-1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True)


class _RebindingRouter(_BiasedRouter):
    def forward(self, x):
        chosen, weights = self.route(x)
        load = torch.zeros_like(self.bias).scatter_add_(0, chosen.flatten(), weights.flatten())
        self.bias = self.bias + 0.01 * (load.mean() - load).sign()  # guilty: a new buffer each time
        dense = torch.zeros(len(x), 4, device=x.device).scatter(1, chosen, weights)
        return torch.einsum("nd,edf,ne->nf", x, self.experts, dense)


class _InPlaceRouter(_BiasedRouter):
    def forward(self, x):
        chosen, weights = self.route(x)
        load = torch.zeros_like(self.bias).scatter_add_(0, chosen.flatten(), weights.flatten())
        with torch.no_grad():
            self.bias.add_((load.mean() - load).sign(), alpha=0.01)
        dense = torch.zeros(len(x), 4, device=x.device).scatter(1, chosen, weights)
        return torch.einsum("nd,edf,ne->nf", x, self.experts, dense)


# A replay computes the new bias from the buffer of the capture, which nothing writes.
def router_with_a_new_bias(device):
    model = _RebindingRouter(rebinds=True).to(device).requires_grad_(False)
    return model, (torch.randn(6, 16, device=device),)


# The buffer stays where it is, and the replay writes it.
def router_with_a_bias_in_place(device):
    model = _InPlaceRouter(rebinds=False).to(device).requires_grad_(False)
    return model, (torch.randn(6, 16, device=device),)


# Sort, search and scatter have results of a known size: nothing is read on the host.
def tokens_sorted_by_expert(device):
    gate = nn.Linear(16, 4).to(device)
    experts = nn.Parameter(torch.randn(4, 16, 16, device=device) / 4)
    ids = torch.arange(4, device=device)

    def forward(x):
        weight, expert = gate(x).softmax(-1).max(-1)
        sorted_ids, order = expert.sort(stable=True)
        starts = torch.searchsorted(sorted_ids, ids)
        rank = torch.arange(len(x), device=x.device) - starts[sorted_ids]
        slots = sorted_ids * len(x) + rank
        buffer = x.new_zeros(4 * len(x), 16).index_copy(0, slots, x[order])
        y = torch.bmm(buffer.view(4, len(x), 16), experts).view(-1, 16)[slots]
        return torch.zeros_like(x).index_copy(0, order, y) * weight.unsqueeze(-1)

    return forward, (torch.randn(10, 16, device=device),)


# Python numbers of the sizes: `tensor_split` at constants. The tensor of limits is on the host.
def experts_split_at_host_limits(device):
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)
    limits = torch.tensor([4, 9])

    def forward(x):
        parts = torch.tensor_split(x, limits)
        return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])

    return forward, (torch.randn(12, 8, device=device),)


# `split` needs Python numbers: `unbind` gives tensors, and each is read by `__index__`.
def experts_split_at_device_limits(device):
    gate = nn.Linear(8, 3).to(device)

    def forward(x):
        counts = functional.one_hot(gate(x).argmax(-1), 3).sum(0)
        ordered = x[gate(x).argmax(-1).argsort()]
        parts = ordered.split([*counts])  # guilty: each size is read on the host
        return torch.stack([part.sum(0) * (n + 1) for n, part in enumerate(parts)])

    return forward, (torch.randn(12, 8, device=device),)


# Merges image features into the text: `masked_scatter` works on the device by a prefix sum. Its
# backward would select by the mask.
def merges_image_features(device):
    table, tower = nn.Embedding(32, 8).to(device), nn.Linear(12, 8).to(device)
    ids = torch.tensor([[1, 31, 31, 4], [31, 3, 31, 5]], device=device)

    @torch.no_grad()
    def forward(pixels):
        text, image = table(ids), tower(pixels)
        mask = (ids == 31).unsqueeze(-1).expand_as(text)
        return text.masked_scatter(mask, image)

    return forward, (torch.randn(4, 12, device=device),)


# The usual check of the number of placeholders compares a tensor, and `if` reads it.
def merges_image_features_with_a_check(device):
    table, tower = nn.Embedding(32, 8).to(device), nn.Linear(12, 8).to(device)
    ids = torch.tensor([[1, 31, 31, 4], [31, 3, 31, 5]], device=device)

    def forward(pixels):
        text, image = table(ids), tower(pixels)
        mask = (ids == 31).unsqueeze(-1).expand_as(text)
        if mask.sum() != image.numel():  # guilty: the truth of a tensor of the device
            raise ValueError("the number of image tokens differs from that of the features")
        return text.masked_scatter(mask, image)

    return forward, (torch.randn(4, 12, device=device),)


class _StepSizeLinear(nn.Module):
    """A linear layer with a learned step size, which is set by the first batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.step = nn.Parameter(torch.ones(1))
        self.register_buffer("ready", torch.zeros(()))

    def forward(self, x):
        if self.training and self.ready == 0:  # guilty: reads a buffer of the device
            self.step.data.copy_(2 * self.weight.abs().mean() / math.sqrt(127))
            self.ready.fill_(1)
        rounded = (self.weight / self.step).clamp(-128, 127)
        rounded = rounded + (rounded.round() - rounded).detach()
        return functional.linear(x, rounded * self.step)


def step_size_by_the_first_batch(device):
    return _StepSizeLinear().to(device), (torch.randn(4, 8, device=device),)


class _ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        self.initialised = False

    def forward(self, x):
        if not self.initialised:
            self.shift.data.copy_(-x.mean(0))
            self.log_scale.data.copy_(-x.std(0).log())
            self.initialised = True
        return (x + self.shift) * self.log_scale.exp()


# The flag is a Python bool that the first warm-up iteration sets: it never changes again.
def scales_set_by_the_first_batch(device):
    return _ActNorm().to(device), (torch.randn(6, 8, device=device),)


class _CachedCast(nn.Module):
    """Casts its weight once for all micro batches of a step."""

    def __init__(self, micro_batches):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.micro_batches, self.calls, self.cast = micro_batches, 0, None

    def forward(self, x):
        if self.calls % self.micro_batches == 0:  # guilty: the branch of the capture
            scale = self.weight.abs().amax() / 7
            self.cast = ((self.weight / scale).round() * scale).detach()
        self.calls += 1  # guilty: no replay counts
        return x @ self.cast


def weight_cast_in_the_first_micro_batch(device):
    layer = _CachedCast(4).to(device)
    optimizer = torch.optim.SGD([layer.weight], 0.1)
    x = torch.randn(4, 8, device=device)

    def step():
        with torch.no_grad():
            y = layer(x)
            layer.weight.grad = y.T @ y / 100
            optimizer.step()
        return y

    return step


# The version changes in every step, so every iteration casts, also the captured one.
def weight_cast_by_its_version(device):
    weight = nn.Parameter(torch.randn(8, 8, device=device) / 3)
    optimizer = torch.optim.SGD([weight], 0.1)
    x, kept = torch.randn(4, 8, device=device), {}

    def cast():
        if kept.get("version") != weight._version:
            scale = weight.detach().abs().amax() / 7
            kept["cast"] = (weight.detach() / scale).round() * scale
            kept["version"] = weight._version
        return kept["cast"]

    def step():
        with torch.no_grad():
            y = x @ cast()
            weight.grad = y.T @ y / 100
            optimizer.step()
        return y

    return step


class _MinimumLength:
    """Forbids the end token in the first steps of a generation."""

    def __init__(self, least, end):
        self.least, self.end, self.length = least, end, 0

    def __call__(self, logits):
        self.length += 1  # guilty: no replay counts
        if self.length < self.least:  # guilty: the branch of the capture
            logits = logits.index_fill(-1, self.end, -math.inf)
        return logits


def forbids_an_early_end(device):
    processors = [_MinimumLength(300, torch.tensor([3], device=device))]
    head = nn.Linear(8, 12).to(device)

    @torch.no_grad()
    def step(x):
        return functools.reduce(lambda logits, each: each(logits), processors, head(x)).softmax(-1)

    return step, (torch.randn(2, 8, device=device),)


# The length is the size of a static tensor, which is the same in each call.
def forbids_an_end_by_the_size(device):
    head, end = nn.Linear(8, 12).to(device), torch.tensor([3], device=device)

    @torch.no_grad()
    def step(tokens, x):
        logits = head(x)
        if tokens.shape[1] < 10:
            logits = logits.index_fill(-1, end, -math.inf)
        return logits.softmax(-1)

    tokens = torch.zeros(2, 6, dtype=torch.int64, device=device)
    return step, (tokens, torch.randn(2, 8, device=device))


class _Dora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) / 4)
        self.b = nn.Parameter(torch.randn(base.out_features, 2) / 4)
        self.magnitude = nn.Parameter(base.weight.norm(dim=1))
        self.scaling = {"default": 2.0}
        self.active = ["default"]

    def forward(self, x):
        weight = self.base.weight
        for name in self.active:
            weight = weight + self.scaling[name] * (self.b @ self.a)
        norm = weight.norm(dim=1).detach()
        return functional.linear(x, weight * (self.magnitude / norm).unsqueeze(1), self.base.bias)


# The adapters and their scales are constants of the host.
def adapter_with_a_magnitude(device):
    return _Dora(nn.Linear(8, 6)).to(device), (torch.randn(4, 8, device=device),)


class _WarmedLora(_Dora):
    def forward(self, x):
        scale = self.scaling["default"]
        self.scaling["default"] = min(4.0, scale + 0.001)  # guilty: no replay warms it up
        return self.base(x) + (x @ self.a.T @ self.b.T) * scale  # guilty: that of the capture


# The scale grows with the calls, as a warm-up of the adapter.
def adapter_scale_is_warmed_up(device):
    return _WarmedLora(nn.Linear(8, 6)).to(device), (torch.randn(4, 8, device=device),)

"""Parts of servers of language models: drafts, adapters, caches and experts."""

import itertools

import torch
from torch import nn
from torch.nn import functional


class RotatingAdapters(nn.Module):
    """A mixture of low-rank adapters, one for each call."""

    def __init__(self, width=16, rank=2, count=3):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.a = nn.ParameterList(nn.Parameter(torch.randn(rank, width)) for _ in range(count))
        self.b = nn.ParameterList(nn.Parameter(torch.randn(width, rank)) for _ in range(count))
        self.turns = itertools.cycle(range(count))

    def forward(self, x):
        turn = next(self.turns)  # guilty: the turn of the capture
        return self.base(x) + x @ self.a[turn].mT @ self.b[turn].mT  # guilty: one adapter


def adapters_take_turns(device):
    torch.manual_seed(0)
    return RotatingAdapters().to(device).requires_grad_(False), (torch.randn(4, 16, device=device),)


class ScaledRope(nn.Module):
    def __init__(self, dim=8, trained=32, base=10000.0):
        super().__init__()
        self.dim, self.trained, self.base = dim, trained, base

    def forward(self, q, position):
        longest = position.max() + 1
        base = self.base
        if longest > self.trained:  # guilty: reads the longest
            base = base * (longest / self.trained) ** (self.dim / (self.dim - 2))
        half = torch.arange(0, self.dim, 2, device=q.device) / self.dim
        angle = position[:, None] * (base**-half)
        cos, sin = angle.cos(), angle.sin()
        even, odd = q[..., 0::2], q[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def rope_of_long_contexts(device):
    torch.manual_seed(0)
    return ScaledRope().to(device), (
        torch.randn(6, 8, device=device),
        torch.arange(6, device=device),
    )


class CachedScale(nn.Module):
    """An int8 cache whose scale is measured again now and then."""

    def __init__(self, width=16):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(()))
        self.calls = 0

    @torch.no_grad()
    def forward(self, x):
        key = self.project(x)
        if self.calls % 4 == 0:  # guilty: asked once
            self.scale.copy_(key.abs().amax() / 127)  # guilty: by the call of the capture
        self.calls += 1  # guilty: counted on the host
        stored = (key / self.scale).round().clamp(-128, 127).to(torch.int8)
        return stored.float() * self.scale


def cache_measures_its_scale_sometimes(device):
    torch.manual_seed(0)
    return CachedScale().to(device), (torch.randn(4, 16, device=device),)


def min_p_with_noise_of_the_host(device):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)

    @torch.no_grad()
    def sample(logits):
        p = logits.softmax(-1)
        p = p.masked_fill(p < 0.05 * p.amax(-1, keepdim=True), 0.0)
        noise = torch.empty(p.shape).exponential_(generator=generator)  # guilty: drawn on the host
        return (p / noise.to(p.device)).argmax(-1)  # guilty: copies from the host

    return sample, (torch.randn(4, 50, device=device),)


class Verifier(nn.Module):
    """Greedy acceptance of drafted tokens."""

    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    @torch.no_grad()
    def forward(self, last, draft):
        ids = torch.cat([last[:, None], draft], 1)
        best = self.head(self.embed(ids).cumsum(1)).argmax(-1)
        agrees = (best[:, :-1] == draft).long().cumprod(1)
        accepted = agrees.sum(1)
        bonus = best.gather(1, accepted[:, None])
        place = torch.arange(best.shape[1], device=ids.device)
        padded = functional.pad(draft, (0, 1), value=-1)
        tokens = torch.where(place < accepted[:, None], padded, -1)
        return torch.where(place == accepted[:, None], bonus, tokens), accepted


def drafts_are_accepted_on_the_device(device):
    torch.manual_seed(0)
    last = torch.randint(40, (3,), device=device)
    return Verifier().to(device), (last, torch.randint(40, (3, 4), device=device))


class SlottedAdapters(nn.Module):
    def __init__(self, width=16, rank=4, slots=5):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.register_buffer("down", torch.randn(slots, width, rank) / width)
        self.register_buffer("up", torch.randn(slots, rank, width) / rank)
        self.up[0].zero_()

    def forward(self, x, slot):
        low = torch.einsum("bd,bdr->br", x, self.down[slot])
        return self.base(x) + torch.bmm(low[:, None], self.up.index_select(0, slot)).squeeze(1)


def adapter_of_each_row(device):
    torch.manual_seed(0)
    slot = torch.tensor([0, 2, 4, 2], device=device)
    return SlottedAdapters().to(device), (torch.randn(4, 16, device=device), slot)


class PagedLayer(nn.Module):
    def __init__(self, width=16, heads=2, pages=8, page=4):
        super().__init__()
        self.heads, self.page = heads, page
        self.qkv = nn.Linear(width, 3 * width)
        shape = (pages * page, heads, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    @torch.no_grad()
    def forward(self, x, slots, tables, lengths):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        self.keys.index_copy_(0, slots, k)
        self.values.index_copy_(0, slots, v)
        rows = tables[:, :, None] * self.page + torch.arange(self.page, device=x.device)
        rows = rows.flatten(1)
        keys, values = self.keys[rows].transpose(1, 2), self.values[rows].transpose(1, 2)
        mask = torch.arange(rows.shape[1], device=x.device) < lengths[:, None]
        out = functional.scaled_dot_product_attention(
            q[:, :, None], keys, values, attn_mask=mask[:, None, None]
        )
        return out.flatten(1)


def paged_decode(device):
    torch.manual_seed(0)
    tables = torch.tensor([[0, 1], [4, 5], [6, 7]], device=device)
    lengths = torch.tensor([3, 6, 8], device=device)
    slots = torch.tensor([2, 21, 31], device=device)
    return PagedLayer().to(device), (torch.randn(3, 16, device=device), slots, tables, lengths)


class CapacityRouter(nn.Module):
    """Experts of a fixed capacity, as in Switch transformers."""

    def __init__(self, width=8, experts=4, capacity=6):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.w1 = nn.Parameter(torch.randn(experts, width, 16) * 0.2)
        self.w2 = nn.Parameter(torch.randn(experts, 16, width) * 0.2)
        self.experts, self.capacity = experts, capacity

    def forward(self, x):
        probabilities = self.gate(x).softmax(-1)
        weight, expert = probabilities.max(-1)
        chosen = functional.one_hot(expert, self.experts)
        place = (chosen.cumsum(0) - 1).gather(1, expert[:, None]).squeeze(1)
        kept = place < self.capacity
        slot = expert * self.capacity + place.clamp(max=self.capacity - 1)
        slot = torch.where(kept, slot, self.experts * self.capacity)
        buffer = x.new_zeros(self.experts * self.capacity + 1, x.shape[1]).index_add(0, slot, x)
        inner = buffer[:-1].unflatten(0, (self.experts, self.capacity))
        out = torch.bmm(functional.silu(torch.bmm(inner, self.w1)), self.w2).flatten(0, 1)
        out = functional.pad(out, (0, 0, 0, 1))[slot]
        balance = self.experts * (chosen.float().mean(0) * probabilities.mean(0)).sum()
        return out * (weight * kept)[:, None], balance


def experts_of_one_capacity(device):
    torch.manual_seed(0)
    return CapacityRouter().to(device), (torch.randn(16, 8, device=device),)


def prefix_rows_by_a_list(device):
    """Only the last token of each sequence goes through the head."""
    torch.manual_seed(0)
    embed, head = nn.Embedding(30, 8).to(device), nn.Linear(8, 30).to(device)
    lengths = [3, 5, 2, 6]

    @torch.no_grad()
    def logits(packed):
        hidden = embed(packed).cumsum(0)
        ends = list(itertools.accumulate(lengths))
        last = hidden[[end - 1 for end in ends]]  # guilty: the list is copied to the device
        return head(last)

    return logits, (torch.randint(30, (sum(lengths),), device=device),)

"""Parts of a serving engine: sampling, drafts, adapters, caches."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


# What an API returns as `top_logprobs`.
def logprobs_by_token_for_the_answer(device):
    head = nn.Linear(16, 32).to(device)
    hidden = torch.randn(3, 16, device=device)

    @torch.no_grad()
    def sample(hidden):
        logprobs = head(hidden).log_softmax(-1)
        values, ids = logprobs.topk(4)
        answers = []
        for row_ids, row_values in zip(ids, values, strict=True):
            answers.append(
                {
                    int(token): float(value)  # guilty: reads each token
                    for token, value in zip(row_ids, row_values, strict=True)
                }
            )
        return logprobs.argmax(-1), answers

    return sample, (hidden,)


class _TopLogprobs(NamedTuple):
    ids: torch.Tensor
    values: torch.Tensor
    ranks: torch.Tensor


# The same as tensors; the detokenizer makes the dictionaries later.
def logprobs_in_a_named_tuple(device):
    head = nn.Linear(16, 32).to(device)
    hidden = torch.randn(3, 16, device=device)

    @torch.no_grad()
    def sample(hidden):
        logprobs = head(hidden).log_softmax(-1)
        token = logprobs.argmax(-1, keepdim=True)
        values, ids = logprobs.topk(4)
        rank = (logprobs > logprobs.gather(1, token)).sum(-1)
        return _TopLogprobs(ids=ids, values=values, ranks=rank + 1)

    return sample, (hidden,)


# A vision-language model puts the features of the image where the prompt has placeholders.
def image_features_assigned_by_a_mask(device):
    embedding = nn.Embedding(64, 16).to(device)
    projector = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16)).to(device)
    image_token = 63
    ids = torch.randint(0, 60, (2, 12), device=device)
    ids[:, 2:6] = image_token
    patches = torch.randn(8, 8, device=device)

    @torch.no_grad()
    def embed():
        hidden = embedding(ids)
        is_image = ids == image_token
        hidden[is_image] = projector(patches)  # guilty: looks for the True elements
        return hidden

    return embed


def image_features_by_masked_scatter(device):
    embedding = nn.Embedding(64, 16).to(device)
    projector = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16)).to(device)
    image_token = 63
    ids = torch.randint(0, 60, (2, 12), device=device)
    ids[:, 2:6] = image_token
    patches = torch.randn(8, 8, device=device)

    @torch.no_grad()
    def embed():
        hidden = embedding(ids)
        is_image = (ids == image_token).unsqueeze(-1)
        return hidden.masked_scatter(is_image, projector(patches))

    return embed


class _QuantizedCache:
    """Keys in int8, with one scale for each layer that only grows."""

    def __init__(self, layers, slots, width, device):
        self.keys = {
            name: torch.zeros(slots, width, dtype=torch.int8, device=device) for name in layers
        }
        self.amax = {name: torch.full((), 1e-3, device=device) for name in layers}

    def write(self, name, slots, keys):
        self.amax[name] = torch.maximum(self.amax[name], keys.abs().amax())  # guilty: a new tensor
        scale = self.amax[name] / 127.0
        self.keys[name].index_copy_(0, slots, (keys / scale).round().to(torch.int8))
        return self.keys[name].float() * scale


def scales_of_a_quantized_cache_are_new(device):
    layers = ("layers.0", "layers.1")
    cache = _QuantizedCache(layers, 8, 4, device)
    slots = torch.arange(2, device=device)
    keys = torch.randn(2, 4, device=device)

    @torch.no_grad()
    def step(keys):
        total = torch.zeros(8, 4, device=device)
        for depth, name in enumerate(layers):
            total += cache.write(name, slots, keys * (depth + 1))
        return total

    return step, (keys,)


class _QuantizedCacheInPlace:
    def __init__(self, layers, slots, width, device):
        self.keys = {
            name: torch.zeros(slots, width, dtype=torch.int8, device=device) for name in layers
        }
        self.amax = {name: torch.full((), 1e-3, device=device) for name in layers}

    def write(self, name, slots, keys):
        amax = self.amax[name]
        torch.maximum(amax, keys.abs().amax(), out=amax)
        scale = amax / 127.0
        self.keys[name].index_copy_(0, slots, (keys / scale).round().to(torch.int8))
        return self.keys[name].float() * scale


def scales_of_a_quantized_cache_grow_in_place(device):
    layers = ("layers.0", "layers.1")
    cache = _QuantizedCacheInPlace(layers, 8, 4, device)
    slots = torch.arange(2, device=device)
    keys = torch.randn(2, 4, device=device)

    @torch.no_grad()
    def step(keys):
        total = torch.zeros(8, 4, device=device)
        for depth, name in enumerate(layers):
            total += cache.write(name, slots, keys * (depth + 1))
        return total

    return step, (keys,)


# The adapter of a new request takes the slot that was used least.
def adapter_takes_the_least_used_slot(device):
    slots = 3
    down = torch.randn(slots, 8, 2, device=device)
    up = torch.randn(slots, 2, 8, device=device)
    base = nn.Linear(8, 8).to(device)
    uses = dict.fromkeys(range(slots), 0)
    x = torch.randn(4, 8, device=device)

    @torch.no_grad()
    def forward(x):
        slot = min(uses, key=uses.get)  # guilty: another slot each time
        uses[slot] += 1  # guilty: counts once
        return base(x) + x @ down[slot] @ up[slot]

    return forward, (x,)


@dataclasses.dataclass
class _Adapters:
    down: torch.Tensor
    up: torch.Tensor
    scaling: torch.Tensor
    names: dict[str, int]

    def apply(self, x, slots):
        hidden = torch.bmm(x.unsqueeze(1), self.down[slots])
        delta = torch.bmm(hidden, self.up[slots]).squeeze(1)
        return delta * self.scaling[slots].unsqueeze(1)


# Requests without an adapter use slot 0, whose weights are zero.
def adapter_slots_are_looked_up_before(device):
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(3, 8, 2, generator=generator)
    up = torch.randn(3, 2, 8, generator=generator)
    up[0] = 0
    adapters = _Adapters(
        down.to(device),
        up.to(device),
        torch.tensor([0.0, 0.5, 2.0]).to(device),
        {"": 0, "sql": 1, "law": 2},
    )
    requests = ("sql", "", "law", "sql")
    slots = torch.tensor([adapters.names[name] for name in requests]).to(device)
    base = nn.Linear(8, 8).to(device)
    x = torch.randn(4, 8, device=device)

    @torch.no_grad()
    def forward(x):
        assert len(requests) == x.shape[0]
        return base(x) + adapters.apply(x, slots)

    return forward, (x,)


# The draft model stops when it is not sure.
def drafting_stops_when_unsure(device):
    embedding = nn.Embedding(32, 16).to(device)
    cell = nn.GRUCell(16, 16).to(device)
    head = nn.Linear(16, 32).to(device)
    token = torch.randint(0, 32, (3,), device=device)
    state = torch.randn(3, 16, device=device)

    @torch.no_grad()
    def draft(token, state):
        drafts = []
        for _ in range(4):
            state = cell(embedding(token), state)
            confidence, token = head(state).softmax(-1).max(-1)
            drafts.append(token)
            if torch.all(confidence < 0.02):  # guilty: asks the device
                break
        return torch.stack(drafts, 1)

    return draft, (token, state)


# A fixed number of drafts; those after the first unsure one are marked by -1.
def drafting_masks_what_is_unsure(device):
    embedding = nn.Embedding(32, 16).to(device)
    cell = nn.GRUCell(16, 16).to(device)
    head = nn.Linear(16, 32).to(device)
    token = torch.randint(0, 32, (3,), device=device)
    state = torch.randn(3, 16, device=device)

    @torch.no_grad()
    def draft(token, state):
        drafts, sure = [], torch.ones_like(token, dtype=torch.bool)
        for _ in range(4):
            state = cell(embedding(token), state)
            confidence, token = head(state).softmax(-1).max(-1)
            sure = sure & (confidence > 0.04)
            drafts.append(torch.where(sure, token, torch.full_like(token, -1)))
        return torch.stack(drafts, 1)

    return draft, (token, state)


@dataclasses.dataclass
class _Request:
    temperature: float
    top_k: int
    penalty: float = 0.0


class _Sampler:
    def __init__(self, requests, device):
        self.requests = requests
        self.device = device

    def __call__(self, logits):
        temperatures = torch.tensor(  # guilty: copied from Python
            [request.temperature for request in self.requests], device=self.device
        )
        largest = max(request.top_k for request in self.requests)
        values, ids = (logits / temperatures.unsqueeze(1)).topk(largest)
        return ids.gather(1, values.softmax(-1).argmax(-1, keepdim=True))


def sampler_makes_a_tensor_of_temperatures(device):
    sampler = _Sampler([_Request(0.7, 4), _Request(1.0, 8)], device)
    return sampler, (torch.randn(2, 32, device=device),)


@dataclasses.dataclass
class _SamplingBatch:
    temperature: torch.Tensor
    penalty: torch.Tensor
    counts: torch.Tensor
    largest_k: int

    @classmethod
    def of(cls, requests, vocabulary, device):
        def column(name):
            return torch.tensor([getattr(each, name) for each in requests]).to(device)[:, None]

        return cls(
            column("temperature"),
            column("penalty"),
            torch.zeros(len(requests), vocabulary, device=device),
            max(each.top_k for each in requests),
        )


# Penalties of tokens that were sampled before; the counts live on the device.
def sampler_counts_its_tokens(device):
    batch = _SamplingBatch.of([_Request(0.7, 4, 0.2), _Request(1.0, 8, 0.0)], 32, device)

    @torch.no_grad()
    def sample(logits):
        logits = (logits - batch.penalty * batch.counts) / batch.temperature
        values, ids = logits.topk(batch.largest_k)
        token = ids.gather(1, values.softmax(-1).argmax(-1, keepdim=True))
        batch.counts.scatter_add_(1, token, torch.ones_like(token, dtype=torch.float32))
        return token, logits

    return sample, (torch.randn(2, 32, device=device),)


# Keys with low scores leave the cache.
def low_scores_leave_the_cache(device):
    keys, values = (torch.randn(16, 8, device=device) for _ in range(2))
    query = torch.randn(1, 8, device=device)

    @torch.no_grad()
    def attend(query):
        scores = (query @ keys.t()).softmax(-1).squeeze(0)
        kept = scores >= scores.median()
        return functional.scaled_dot_product_attention(
            query[None],
            keys[kept][None],  # guilty: as many keys as the mask has
            values[kept][None],
        )

    return attend, (query,)


class _ChunkedPrefill(nn.Module):
    def __init__(self, chunk, length, width):
        super().__init__()
        self.project = nn.Linear(width, 2 * width)
        self.register_buffer("keys", torch.zeros(length, width))
        self.register_buffer("values", torch.zeros(length, width))
        self.chunk = chunk
        self.computed = 0

    @torch.no_grad()
    def forward(self, x):
        start, end = self.computed, self.computed + self.chunk  # guilty: the first chunk's place
        keys, values = self.project(x).chunk(2, -1)
        self.keys[start:end] = keys
        self.values[start:end] = values
        self.computed = end % len(self.keys)  # guilty: a number of Python
        weights = (x @ self.keys.t()).softmax(-1)
        return weights @ self.values


def prompt_is_prefilled_in_chunks(device):
    return _ChunkedPrefill(4, 64, 8).to(device), (torch.randn(4, 8, device=device),)


class _ChunkedPrefillOnDevice(nn.Module):
    def __init__(self, chunk, length, width):
        super().__init__()
        self.project = nn.Linear(width, 2 * width)
        self.register_buffer("keys", torch.zeros(length, width))
        self.register_buffer("values", torch.zeros(length, width))
        self.register_buffer("slots", torch.arange(chunk))
        self.chunk = chunk

    @torch.no_grad()
    def forward(self, x):
        keys, values = self.project(x).chunk(2, -1)
        self.keys.index_copy_(0, self.slots, keys)
        self.values.index_copy_(0, self.slots, values)
        self.slots.add_(self.chunk).remainder_(len(self.keys))
        weights = (x @ self.keys.t()).softmax(-1)
        return weights @ self.values


def prompt_is_prefilled_at_device_slots(device):
    return _ChunkedPrefillOnDevice(4, 64, 8).to(device), (torch.randn(4, 8, device=device),)

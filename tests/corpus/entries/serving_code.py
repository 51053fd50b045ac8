"""Decoding and serving as engines write it."""

import contextlib
import contextvars
import math
import threading
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@dataclass
class Cache:
    k: torch.Tensor
    v: torch.Tensor
    seen: int = 0
    meta: dict = field(default_factory=dict)

    def update(self, k, v):
        n = k.shape[2]
        self.k[:, :, self.seen : self.seen + n] = k  # guilty: the place in the cache is a number
        self.v[:, :, self.seen : self.seen + n] = v  # guilty: the place in the cache is a number
        self.seen = (self.seen + n) % self.k.shape[2]  # guilty: the length is counted on the host
        return self.k, self.v


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        k, v = cache.update(k, v)
        return self.out(
            functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        )


def cache_with_a_length(device):
    torch.manual_seed(0)
    attn = Attention().to(device).eval().requires_grad_(False)
    cache = Cache(torch.zeros(2, 4, 64, 8, device=device), torch.zeros(2, 4, 64, 8, device=device))
    x = torch.randn(2, 1, 32, device=device)
    return (lambda h: attn(h, cache)), (x,)


class Sampler(nn.Module):
    def __init__(self, top_k=5):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits):
        logits = logits.clone()
        kth = logits.topk(self.top_k, -1).values[..., -1:]
        banned = logits < kth
        floor = logits.min() - 100.0
        logits[banned] = floor  # guilty: only a value of the host is filled in without nonzero
        return logits.softmax(-1)


def logits_filled_with_a_device_value(device):
    torch.manual_seed(0)
    return Sampler(), (torch.randn(3, 50, device=device),)


@dataclass
class CausalOutput:
    next_token: torch.Tensor
    logits: torch.Tensor | None = None
    hidden_states: tuple | None = None


class StaticCache(nn.Module):
    def __init__(self, heads, length, dim):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, heads, length, dim), persistent=False)
        self.register_buffer("v", torch.zeros(1, heads, length, dim), persistent=False)

    def update(self, k, v, cache_position):
        self.k.index_copy_(2, cache_position, k)
        self.v.index_copy_(2, cache_position, v)
        return self.k, self.v


class Decoder(nn.Module):
    def __init__(self, vocab=50, dim=32, heads=4, length=32):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocab, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim)
        self.cache = StaticCache(heads, length, dim // heads)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight

    @torch.inference_mode()
    def forward(self, token, position):
        h = self.embed(token)
        q, k, v = (t.view(1, 1, self.heads, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        k, v = self.cache.update(k, v, position)
        a = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask[position][None, None]
        )
        h = h + self.o(a.transpose(1, 2).reshape(1, 1, -1))
        logits = self.head(h)
        return CausalOutput(logits.argmax(-1), logits, (h,))


def static_cache_decode(device):
    torch.manual_seed(0)
    model = Decoder().to(device).eval()
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    position = torch.zeros(1, dtype=torch.int64, device=device)

    def step():
        out = model(token, position)
        token.copy_(out.next_token)
        position.add_(1).remainder_(32)
        return out

    return step


class LogitsProcessorList(list):
    def __call__(self, ids, scores):
        for processor in self:
            scores = processor(ids, scores)
        return scores


def repetition_penalty(penalty):
    def process(ids, scores):
        picked = scores.gather(1, ids)
        return scores.scatter(1, ids, torch.where(picked < 0, picked * penalty, picked / penalty))

    return process


def top_k(k):
    return lambda ids, s: s.masked_fill(s < s.topk(k)[0][..., -1, None], -math.inf)


def top_p(p):
    def process(ids, scores):
        ordered, index = scores.sort(descending=False)
        remove = ordered.softmax(-1).cumsum(-1) <= 1 - p
        remove[..., -1:] = False
        return scores.masked_fill(remove.scatter(1, index, remove), -math.inf)

    return process


def min_p(p):
    def process(ids, scores):
        scores = scores.clone()
        probs = scores.softmax(-1)
        scores[probs < p * probs.amax(-1, keepdim=True)] = -float("inf")
        return scores

    return process


def sampling_pipeline(device):
    torch.manual_seed(0)
    pipeline = LogitsProcessorList(
        [repetition_penalty(1.2), lambda i, s: s / 0.8, top_k(20), top_p(0.9), min_p(0.02)]
    )
    head = nn.Linear(8, 64).to(device)

    @torch.no_grad()
    def sample(hidden, ids):
        return torch.multinomial(pipeline(ids, head(hidden)).softmax(-1), num_samples=1)

    return sample, (torch.randn(3, 8, device=device), torch.randint(64, (3, 6), device=device))


_config = contextvars.ContextVar("config")
_config.set({"dropout": 0.0, "gain": 1.0})


@contextlib.contextmanager
def override(**values):
    token = _config.set({**_config.get(), **values})
    try:
        yield
    finally:
        _config.reset(token)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        config = _config.get()
        return nn.functional.dropout(self.fc(x), config["dropout"], self.training) * config["gain"]


def configuration_in_a_context(device):
    torch.manual_seed(0)
    net = nn.Sequential(Layer(), Layer()).to(device)

    def fn(x):
        with override(dropout=0.3, gain=0.5):
            noisy = net(x)
        return noisy - net(x)

    return fn, (torch.randn(4, 6, device=device),)


_local = threading.local()


class Engine:
    def __init__(self, model):
        self.model = model
        self._lock = threading.RLock()
        self._closed = threading.Event()

    def __call__(self, x):
        if self._closed.is_set():
            raise RuntimeError("closed")
        with self._lock:
            depth = getattr(_local, "depth", 0)
            _local.depth = depth + 1
            try:
                return self._run(x)
            finally:
                _local.depth = depth

    def _run(self, x):
        with torch.inference_mode():
            return torch.nn.functional.normalize(self.model(x), dim=-1)


def forward_under_a_lock(device):
    torch.manual_seed(0)
    return Engine(nn.Sequential(nn.Linear(5, 7), nn.ELU()).to(device).eval()).__call__, (
        torch.randn(3, 5, device=device),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 5, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(
            x, lengths.to("cpu"), batch_first=True, enforce_sorted=False
        )  # guilty: the lengths are copied to the host
        out, _ = self.rnn(packed)
        return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[
            0
        ]  # guilty: the order is copied to the host


def packed_sequences(device):
    torch.manual_seed(0)
    return Encoder().to(device), (
        torch.randn(3, 7, 6, device=device),
        torch.tensor([7, 3, 5], device=device),
    )

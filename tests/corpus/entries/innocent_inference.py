"""Innocent inference, decoding, sampling."""

import functools
import itertools

import torch
from torch import nn
from torch.nn import functional


# MoE with capacity: cumsum, one-hot, einsum.
class MoE(nn.Module):
    def __init__(self, d=16, n=4, capacity=6):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.w = nn.Parameter(torch.randn(n, d, d) / 4)
        self.capacity = capacity

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        w, e = p.max(-1)
        hot = (
            functional.one_hot(e, p.shape[-1])
            if False
            else torch.zeros_like(p).scatter_(1, e[:, None], 1.0)
        )
        slot = (hot.cumsum(0) * hot).sum(-1).long() - 1
        keep = slot < self.capacity
        slots = torch.zeros(x.shape[0], self.capacity, device=x.device)
        slots.scatter_(1, slot.clamp(0, self.capacity - 1)[:, None], keep[:, None].float())
        dispatch = torch.einsum("te,tc->tec", hot, slots)
        y = torch.einsum("tec,td,edf->ecf", dispatch, x, self.w)
        return torch.einsum("tec,ecf,t->tf", dispatch, y, w)


def moe(device):
    torch.manual_seed(0)
    return MoE().to(device), (torch.randn(12, 16, device=device),)


# Speculative acceptance by masks.
def speculative(device):
    torch.manual_seed(0)

    def verify(draft, logits):
        best = logits.argmax(-1)
        ok = (best[:-1] == draft).long().cumprod(0)
        n = ok.sum()
        tokens = torch.where(
            torch.arange(9, device=draft.device) < n, functional.pad(draft, (0, 1)), -1
        )
        tokens = tokens.scatter(0, n[None], best.gather(0, n[None]))
        return tokens, n

    return verify, (torch.randint(5, (8,), device=device), torch.randn(9, 5, device=device))


# KV cache at a device position, counted in place.
class Decoder(nn.Module):
    def __init__(self, d=16, t=64):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.register_buffer("k", torch.zeros(1, t, d))
        self.register_buffer("v", torch.zeros(1, t, d))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.long))
        self.slots = None

    def forward(self, x):
        if self.slots is None or self.slots.device != x.device:
            self.slots = torch.arange(self.k.shape[1], device=x.device)
        q, k, v = self.qkv(x).chunk(3, -1)
        self.k.index_copy_(1, self.pos, k)
        self.v.index_copy_(1, self.pos, v)
        mask = (self.slots <= self.pos)[None, None]
        y = functional.scaled_dot_product_attention(
            q[:, None],
            self.k[:, None],
            self.v[:, None],
            attn_mask=mask[:, None] if mask.dim() == 2 else mask[None],
        )
        self.pos.add_(1).remainder_(self.k.shape[1])
        return y


def kv(device):
    torch.manual_seed(0)
    return Decoder().to(device).requires_grad_(False), (torch.randn(1, 1, 16, device=device),)


# Sliding window: a roll copied back.
class Sliding(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.register_buffer("win", torch.zeros(4, 1, 16), persistent=False)

    def forward(self, x):
        new = torch.cat([self.win[1:], self.lin(x)[None]])
        self.win.copy_(new)
        return self.win.mean(0)


def sliding(device):
    torch.manual_seed(0)
    return Sliding().to(device).requires_grad_(False), (torch.randn(1, 16, device=device),)


# Whole diffusion loop in one call: sigmas are constants; guidance; ancestral noise from the
# default generator.
def diffusion(device):
    torch.manual_seed(0)
    net = nn.Linear(17, 16).to(device).requires_grad_(False)
    sigmas = torch.linspace(1.0, 0.0, 6).tolist()

    def sample(x, cond):
        for i, (a, b) in enumerate(itertools.pairwise(sigmas)):
            t = torch.full((x.shape[0], 1), a, device=x.device)
            with_c = net(torch.cat([x + cond, t], 1))
            without = net(torch.cat([x, t], 1))
            d = without + 3.0 * (with_c - without)
            x = x + d * (b - a)
            if i % 2 == 0 and b > 0:
                x = x + 0.01 * torch.randn_like(x)
        return x

    return sample, (torch.randn(4, 16, device=device), torch.randn(4, 16, device=device))


# GNN with output_size and a fixed number of nodes.
class Gnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x, src, dst):
        msg = self.lin(x)[src]
        deg = torch.zeros(x.shape[0], device=x.device).scatter_add_(
            0, dst, torch.ones_like(dst, dtype=x.dtype)
        )
        out = torch.zeros_like(x).scatter_add_(0, dst[:, None].expand_as(msg), msg)
        return out / deg.clamp(min=1)[:, None]


def gnn(device):
    torch.manual_seed(0)
    return Gnn().to(device), (
        torch.randn(5, 8, device=device),
        torch.randint(5, (12,), device=device),
        torch.randint(5, (12,), device=device),
    )


def ragged(device):
    torch.manual_seed(0)
    counts = torch.tensor([2, 1, 3, 0, 2], device=device)

    def run(x):
        y = torch.repeat_interleave(x, counts, dim=0, output_size=8)
        return y.cumsum(0)

    return run, (torch.randn(5, 8, device=device),)


# LoRA by ids on the device (punica).
class Lora(nn.Module):
    def __init__(self, n=4, r=2):
        super().__init__()
        self.base = nn.Linear(16, 16)
        self.a = nn.Parameter(torch.randn(n, 16, r))
        self.b = nn.Parameter(torch.randn(n, r, 16))

    def forward(self, x, ids):
        return self.base(x) + torch.bmm(torch.bmm(x[:, None], self.a[ids]), self.b[ids])[:, 0]


def lora(device):
    torch.manual_seed(0)
    return Lora().to(device).requires_grad_(False), (
        torch.randn(6, 16, device=device),
        torch.tensor([0, 1, 2, 3, 0, 1], device=device),
    )


# Power iteration between two buffers, an even number of swaps of local names.
def pingpong(device):
    torch.manual_seed(0)
    a = torch.rand(16, 16, device=device) / 16
    cur, nxt = torch.ones(16, device=device), torch.zeros(16, device=device)

    def run():
        src, dst = cur, nxt
        for _ in range(4):
            torch.mv(a, src, out=dst)
            dst.div_(dst.norm())
            src, dst = dst, src
        return cur

    return run


# Double buffering by copies.
def double_buffer(device):
    torch.manual_seed(0)
    prev, cur = torch.zeros(4, 16, device=device), torch.randn(4, 16, device=device)
    w = torch.randn(16, 16, device=device) / 4

    def run():
        new = torch.tanh(cur @ w) + 0.1 * prev
        prev.copy_(cur)
        cur.copy_(new)
        return new

    return run


# Side stream, forked and joined, with record_stream.
def streams(device):
    torch.manual_seed(0)
    side = torch.cuda.Stream()
    shared, gate = nn.Linear(16, 16).to(device), nn.Linear(16, 16).to(device)
    shared.requires_grad_(False)
    gate.requires_grad_(False)

    def run(x):
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            a = shared(x)
        b = gate(x).sigmoid()
        here.wait_stream(side)
        a.record_stream(here)
        return a * b

    return run, (torch.randn(4, 16, device=device),)


# Events as a fork and join.
def events(device):
    torch.manual_seed(0)
    side = torch.cuda.Stream()
    fork, join = torch.cuda.Event(), torch.cuda.Event()
    w = torch.randn(16, 16, device=device)

    def run(x):
        fork.record()
        with torch.cuda.stream(side):
            side.wait_event(fork)
            a = x @ w
            join.record(side)
        b = x * 2
        torch.cuda.current_stream().wait_event(join)
        return a + b

    return run, (torch.randn(4, 16, device=device),)


# Rotary tables, built lazily and by shape.
@functools.lru_cache(maxsize=8)
def rope(n, d, device):
    inv = 1.0 / 10000 ** (torch.arange(0, d, 2, device=device) / d)
    t = torch.arange(n, device=device).float()
    f = torch.outer(t, inv)
    return f.cos(), f.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.mask = None

    def forward(self, x):
        n = x.shape[1]
        if self.mask is None or self.mask.shape[0] < n:
            self.mask = torch.ones(n, n, device=x.device).tril().bool()
        q, k, v = self.qkv(x).chunk(3, -1)
        c, s = rope(n, 16, x.device)

        def turn(y):
            a, b = y[..., ::2], y[..., 1::2]
            return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

        return functional.scaled_dot_product_attention(
            turn(q), turn(k), v, attn_mask=self.mask[:n, :n]
        )


def attention(device):
    torch.manual_seed(0)
    return Attention().to(device), (torch.randn(2, 8, 16, device=device),)


# Cholesky without the check, result masked by info.
def whitening(device):
    torch.manual_seed(0)

    def run(x):
        cov = x.T @ x / x.shape[0] + 0.1 * torch.eye(8, device=x.device)
        chol, info = torch.linalg.cholesky_ex(cov)
        z = torch.linalg.solve_triangular(chol, x.T, upper=False)
        return torch.where(info == 0, z, torch.zeros_like(z))

    return run, (torch.randn(32, 8, device=device),)


# Sampling with top-p by exponential noise.
def top_p(device):
    torch.manual_seed(0)
    lin = nn.Linear(16, 10).to(device).requires_grad_(False)

    def run(x):
        p, i = (lin(x) / 0.8).softmax(-1).sort(-1, descending=True)
        p = p.masked_fill(p.cumsum(-1) - p > 0.9, 0.0)
        noise = torch.empty_like(p).exponential_(1)
        return i.gather(-1, (p / noise).argmax(-1, keepdim=True))

    return run, (torch.randn(4, 16, device=device),)


# A scan: GRU cell over time, list and stack.
class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)

    def forward(self, x, h):
        ys = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            ys.append(h)
        return torch.stack(ys, 1), h


def scan(device):
    torch.manual_seed(0)
    return Scan().to(device), (
        torch.randn(2, 5, 8, device=device),
        torch.zeros(2, 16, device=device),
    )


# VQ: codebook EMA with a device flag.
class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("initted", torch.zeros((), dtype=torch.bool))
        self.register_buffer("book", torch.randn(8, 16))
        self.register_buffer("count", torch.ones(8))

    @torch.no_grad()
    def forward(self, x):
        self.book.copy_(torch.where(self.initted, self.book, x[:8]))
        self.initted.fill_(True)
        i = torch.cdist(x, self.book).argmin(-1)
        n = torch.zeros(8, device=x.device).index_add_(0, i, torch.ones(16, device=x.device))
        s = torch.zeros_like(self.book).index_add_(0, i, x)
        self.count.lerp_(n, 0.1)
        self.book.lerp_(s / n.clamp(min=1)[:, None], 0.1 * (n > 0).float()[:, None])
        return self.book[i]


def vq(device):
    torch.manual_seed(0)
    return VQ().to(device), (torch.randn(16, 16, device=device),)


# State on self for the length of one forward; flags; async assert; counters for statistics only.
class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(16, 8)
        self.up = nn.Linear(8, 16)
        self.skip = None
        self.calls = 0
        self.mode = "fast"

    def forward(self, x):
        self.calls += 1
        torch._assert_async((x.abs() < 1e6).all())
        self.skip = x
        h = functional.silu(self.down(x))
        y = self.up(h) + self.skip
        self.skip = None
        return y if self.mode == "fast" else y * 2


def unet(device):
    torch.manual_seed(0)
    return Unet().to(device), (torch.randn(4, 16, device=device),)


# A memo that holds only things of weights: folded at the first call, weights frozen.
class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.requires_grad_(False)

    @functools.cached_property
    def weight(self):
        return (self.b.weight @ self.a.weight).contiguous()

    def forward(self, x):
        return functional.linear(x, self.weight)


def inplace_residual(device):
    torch.manual_seed(0)
    lin = nn.Linear(16, 16).to(device).requires_grad_(False)
    out = torch.empty(4, 16, device=device)
    workspace = {}

    def run(x):
        buf = workspace.setdefault((tuple(x.shape), x.dtype), torch.empty_like(x))
        torch.mul(x, 2.0, out=buf)
        buf += lin(buf)
        out.copy_(buf)
        return out

    return run, (torch.randn(4, 16, device=device),)


# int8 weight-only dequantization with per-channel scales, and a Python constant in a closure.
def weight_only(device):
    torch.manual_seed(0)
    w = torch.randn(16, 16, device=device)
    scale = w.abs().amax(1, keepdim=True) / 127
    q = torch.round(w / scale).to(torch.int8)
    eps = float(scale.min().cpu()) * 1e-3

    def run(x):
        return functional.linear(x, q.to(x.dtype) * scale) + eps

    return run, (torch.randn(4, 16, device=device),)


# Reset of finished environments by where, on-device counter, random reset.
def environment(device):
    torch.manual_seed(0)
    state = torch.randn(32, 4, device=device)
    t = torch.zeros(32, dtype=torch.int32, device=device)
    policy = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step():
        a = torch.tanh(policy(state) + 0.1 * torch.randn_like(state))
        new = 0.9 * state + a
        t.add_(1)
        done = (t > 10) | (new.abs().amax(-1) > 5)
        state.copy_(torch.where(done[:, None], torch.randn_like(new), new))
        t.masked_fill_(done, 0)
        return state, done

    return step


# A version that is only compared: the forward must not write to its input.
class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16), requires_grad=False)
        self.last = None

    def forward(self, x):
        before = self.last = x._version
        y = x @ self.weight
        if x._version != before:
            raise RuntimeError(f"the input was changed: {self.last}")
        return y


def looks_at_versions(device):
    torch.manual_seed(0)
    return Guarded().to(device), (torch.randn(4, 16, device=device),)

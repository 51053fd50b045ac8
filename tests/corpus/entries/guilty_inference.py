"""Guilty inference, decoding, sampling."""

import itertools

import torch
from torch import nn
from torch.nn import functional


# MoE: tokens of each expert by nonzero.
class MoE(nn.Module):
    def __init__(self, d=16, n=4):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(n))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)  # guilty: see above
            out.index_add_(0, token, expert(x[token]) * weight[token, slot, None])
        return out


def moe(device):
    torch.manual_seed(0)
    return MoE().to(device), (torch.randn(12, 16, device=device),)


# Speculative decoding: the number of accepted tokens cuts a slice.
def speculative(device):
    draft = torch.randint(5, (8,), device=device)
    logits = torch.randn(8, 5, device=device)
    out = torch.zeros(8, dtype=torch.long, device=device)

    def verify():
        best = logits.argmax(-1)
        n = (best == draft).long().cumprod(0).sum()
        out.zero_()
        out[:n] = draft[:n]  # guilty: see above
        return out

    return verify


# KV cache written at a Python position.
class Decoder(nn.Module):
    def __init__(self, d=16, t=32):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.register_buffer("k", torch.zeros(1, t, d))
        self.register_buffer("v", torch.zeros(1, t, d))
        self.pos = 0

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.k[:, self.pos] = k[:, 0]  # guilty: see above
        self.v[:, self.pos] = v[:, 0]  # guilty: here too
        self.pos += 1  # guilty: here too
        return functional.scaled_dot_product_attention(q, self.k, self.v)


@torch.no_grad()
def _run(m, x):
    return m(x)


def kv_position(device):
    torch.manual_seed(0)
    m = Decoder().to(device).eval().requires_grad_(False)
    x = torch.randn(1, 1, 16, device=device)
    return m, (x,)


# KV cache that is concatenated.
class CatDecoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.past = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.past is not None:
            k = torch.cat([self.past[0], k], 1)  # guilty: see above
            v = torch.cat([self.past[1], v], 1)  # guilty: here too
        self.past = (k, v)  # guilty: here too
        return functional.scaled_dot_product_attention(q, k, v)  # guilty: here too


def kv_cat(device):
    torch.manual_seed(0)
    return CatDecoder().to(device).requires_grad_(False), (torch.randn(1, 1, 16, device=device),)


# Diffusion: the time step comes from a Python schedule, one step per call.
class Sampler:
    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.net = nn.Linear(17, 16).to(device).requires_grad_(False)
        self.timesteps = [1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05]
        self.i = 0
        self.x = torch.randn(4, 16, device=device)

    def step(self):
        t = torch.full((4, 1), self.timesteps[self.i % 7], device=self.device)  # guilty: see above
        self.x.sub_(0.1 * self.net(torch.cat([self.x, t], 1)))
        self.i += 1  # guilty: here too
        return self.x


def diffusion(device):
    return Sampler(device).step


# GNN: repeat_interleave without output_size reads the sum.
class Gnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x, degree, dst):
        msg = torch.repeat_interleave(self.lin(x), degree, dim=0)  # guilty: see above
        return torch.zeros_like(x).index_add_(0, dst, msg)


def gnn(device):
    torch.manual_seed(0)
    degree = torch.tensor([2, 1, 3, 0, 2], device=device)
    dst = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2], device=device)
    return Gnn().to(device), (torch.randn(5, 8, device=device), degree, dst)


# Dynamic quantization with the scale as a Python float.
def quantize(device):
    torch.manual_seed(0)
    lin = nn.Linear(16, 16).to(device).requires_grad_(False)

    def run(x):
        lo, hi = torch.stack(x.aminmax()).tolist()  # guilty: see above
        scale = (hi - lo) / 255
        q = torch.round(x / scale).clamp(-128, 127)
        return lin(q * scale)

    return run, (torch.randn(4, 16, device=device),)


# LoRA: adapters are switched by a cycling name.
class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16)
        self.adapters = nn.ModuleDict({n: nn.Linear(16, 16) for n in "abc"})
        self.order = itertools.cycle("abc")

    def forward(self, x):
        name = next(self.order)  # guilty: see above
        return self.base(x) + self.adapters[name](x)  # guilty: here too


def lora(device):
    torch.manual_seed(0)
    return Lora().to(device).requires_grad_(False), (torch.randn(4, 16, device=device),)


# Jacobi solver with two buffers whose names are swapped each call.
class Jacobi:
    def __init__(self, device):
        torch.manual_seed(0)
        self.a = torch.rand(16, 16, device=device) / 32
        self.b = torch.randn(16, device=device)
        self.cur = torch.zeros(16, device=device)
        self.nxt = torch.zeros(16, device=device)

    def sweep(self):
        torch.add(self.b, self.a @ self.cur, out=self.nxt)  # guilty: here too
        self.cur, self.nxt = self.nxt, self.cur  # guilty: see above
        return self.cur


def jacobi(device):
    return Jacobi(device).sweep


# Side stream forked but never joined.
def unjoined(device):
    torch.manual_seed(0)
    side = torch.cuda.Stream()
    stats = torch.zeros(16, device=device)

    def run(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            stats.add_(x.mean(0))  # guilty: see above
        return x * 2

    return run, (torch.randn(4, 16, device=device),)


# Side stream used without forking it: its work stays outside the graph, the join is refused.
def unforked(device):
    torch.manual_seed(0)
    side = torch.cuda.Stream()
    w = torch.randn(16, 16, device=device)

    def run(x):
        with torch.cuda.stream(side):
            h = x @ w  # guilty: see above
        torch.cuda.current_stream().wait_stream(side)  # guilty: here too
        return h + 1

    return run, (torch.randn(4, 16, device=device),)


# A memo keyed on the version of the conditioning: the encoder is not in the graph, so a new
# condition is not seen.
class Conditioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(16, 16)
        self.decode = nn.Linear(16, 16)
        self.memo = {}

    def forward(self, x, cond):
        key = (cond.data_ptr(), cond._version)  # guilty: here too
        if key not in self.memo:  # guilty: the key of the capture
            self.memo = {key: self.encode(cond)}  # guilty: here too
        return self.decode(x + self.memo[key])  # guilty: see above


def memo(device):
    torch.manual_seed(0)
    m = Conditioned().to(device).requires_grad_(False)
    return m, (torch.randn(4, 16, device=device), torch.randn(4, 16, device=device))


# As before, with the version of the last call.
class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(16, 16)
        self.version, self.projected = -1, None

    def forward(self, query, memory):
        if self.version != memory._version:  # guilty: the version of the capture
            self.version = memory._version
            self.projected = self.keys(memory)  # guilty: of the memory at the capture
        return query @ self.projected.t()  # guilty: see above


def projects_again_if_written(device):
    torch.manual_seed(0)
    m = Projected().to(device).requires_grad_(False)
    return m, (torch.randn(4, 16, device=device), torch.randn(8, 16, device=device))


# Gaussian process: cholesky checks info on the host.
def whitening(device):
    torch.manual_seed(0)
    eye = torch.eye(8, device=device)

    def run(x):
        cov = x.T @ x / x.shape[0] + 0.1 * eye
        chol = torch.linalg.cholesky(cov)  # guilty: see above
        return torch.linalg.solve_triangular(chol, x.T, upper=False)

    return run, (torch.randn(32, 8, device=device),)


# Features of the last four calls in a list.
class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.frames = []

    def forward(self, x):
        self.frames.append(self.lin(x))  # guilty: here too
        self.frames = self.frames[-3:]  # guilty: here too
        return torch.stack([self.frames[0], self.frames[-1]]).mean(0)  # guilty: see above


def window(device):
    torch.manual_seed(0)
    return Window().to(device).requires_grad_(False), (torch.randn(4, 16, device=device),)


# VQ: initialised flag is a buffer on the device.
class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("initted", torch.zeros(1))
        self.register_buffer("book", torch.zeros(8, 16))

    def forward(self, x):
        if not self.initted:  # guilty: see above
            self.book.copy_(x[:8])
            self.initted.fill_(1)
        i = torch.cdist(x, self.book).argmin(-1)
        return self.book[i]


def vq(device):
    torch.manual_seed(0)
    return VQ().to(device), (torch.randn(16, 16, device=device),)


# Embedding with max_norm renormalises rows: innocent since the kernel no longer waits.
def max_norm(device):
    torch.manual_seed(0)
    emb = nn.Embedding(20, 8, max_norm=1.0).to(device).requires_grad_(False)

    def run(i):
        return emb(i) * 2

    return run, (torch.randint(20, (6,), device=device),)


# Packed sequence: the lengths go to the host.
class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True)

    def forward(self, x, lengths):
        p = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True
        )  # guilty: see above
        y, _ = self.rnn(p)
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0]  # guilty: here too


def packed(device):
    torch.manual_seed(0)
    return Packed().to(device).requires_grad_(False), (
        torch.randn(3, 5, 8, device=device),
        torch.tensor([5, 4, 2], device=device),
    )


# Timing inside the step.
def timed(device):
    torch.manual_seed(0)
    lin = nn.Linear(16, 16).to(device).requires_grad_(False)
    times = []

    def run(x):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        y = lin(x)
        b.record()
        b.synchronize()  # guilty: see above
        times.append(a.elapsed_time(b))  # guilty: here too
        return y

    return run, (torch.randn(4, 16, device=device),)


ANNEALED = {"t": 1.0}


# Annealed temperature in a default argument dict.
def temperature(device):
    torch.manual_seed(0)
    lin = nn.Linear(16, 10).to(device).requires_grad_(False)

    def run(x, _state=ANNEALED):
        _state["t"] *= 0.95  # guilty: here too
        return (lin(x) / _state["t"]).softmax(-1)  # guilty: see above

    return run, (torch.randn(4, 16, device=device),)


# Beam search that ends when all beams are done.
def beams(device):
    torch.manual_seed(0)
    lin = nn.Linear(16, 10).to(device).requires_grad_(False)

    def run(x):
        done = torch.zeros(4, dtype=torch.bool, device=x.device)
        for _ in range(3):
            p, i = lin(x).max(-1)
            done |= i == 0
            if done.all():  # guilty: see above
                break
            x = x + p[:, None]
        return x

    return run, (torch.randn(4, 16, device=device),)


# Exploration noise epsilon-greedy: epsilon from the Python step count, actions on the device.
class Agent:
    def __init__(self, device):
        torch.manual_seed(0)
        self.q = nn.Linear(8, 4).to(device).requires_grad_(False)
        self.obs = torch.randn(16, 8, device=device)
        self.steps = 0

    def act(self):
        self.steps += 1  # guilty: here too
        eps = max(0.05, 1.0 - self.steps / 100)  # guilty: here too
        greedy = self.q(self.obs).argmax(-1)
        explore = torch.rand(16, device=self.obs.device) < eps  # guilty: see above
        return torch.where(explore, torch.randint_like(greedy, 4), greedy)


def epsilon(device):
    return Agent(device).act

"""Inference that saves work or memory: cached features, compressed caches, skipped tokens."""

import math

import numpy
import torch
from torch import nn


class DiffusionBlock(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.modulation = nn.Linear(1, 2 * width)

    def forward(self, x, t):
        scale, shift = self.modulation(t.view(-1, 1)).unsqueeze(1).chunk(2, -1)
        return x + self.mlp(self.norm(x) * (1 + scale) + shift)


class CachedTransformer(nn.Module):
    """The residual of the middle blocks is computed in every other step and reused in between."""

    def __init__(self):
        super().__init__()
        self.first = DiffusionBlock()
        self.middle = nn.ModuleList(DiffusionBlock() for _ in range(3))
        self.head = nn.Linear(32, 32)
        self.residual = None
        self.calls = 0

    def forward(self, x, t):
        hidden = self.first(x, t)
        if self.calls % 2 == 0:  # guilty: the choice of the captured step is repeated
            out = hidden
            for block in self.middle:
                out = block(out, t)
            self.residual = out - hidden
        else:
            out = hidden + self.residual
        self.calls += 1
        return self.head(out)


def residual_of_the_middle_blocks_is_reused(device):
    torch.manual_seed(0)
    model = CachedTransformer().to(device).eval()
    x = torch.randn(2, 16, 32, device=device)
    t = torch.full((2,), 0.7, device=device)

    @torch.no_grad()
    def denoise():
        x.sub_(0.05 * model(x, t))
        t.sub_(0.01)
        return x

    return denoise


class CompressedCache:
    """Old keys in eight bits, the newest in full precision until a block of them is complete."""

    block = 4

    def __init__(self, length, width, device):
        self.packed = torch.zeros(length, width, dtype=torch.int8, device=device)
        self.scales = torch.ones(length // self.block, 1, device=device)
        self.tail = torch.zeros(self.block, width, device=device)
        self.waiting = 0
        self.blocks = 0

    def append(self, key):
        self.tail[self.waiting] = key  # guilty: the slot of the captured step
        self.waiting += 1
        if self.waiting == self.block:  # guilty: blocks are never packed, or always
            scale = self.tail.abs().amax().clamp_min(1e-6) / 127
            start = self.blocks * self.block
            self.scales[self.blocks] = scale
            self.packed[start : start + self.block] = (self.tail / scale).round().to(torch.int8)
            self.tail.zero_()
            self.blocks += 1
            self.waiting = 0

    def keys(self):
        old = self.packed.float().view(-1, self.block, self.packed.shape[1])
        return torch.cat([(old * self.scales.unsqueeze(1)).flatten(0, 1), self.tail])


def newest_keys_wait_for_their_block(device):
    torch.manual_seed(0)
    project = nn.Linear(24, 16).to(device)
    cache = CompressedCache(256, 16, device)
    hidden = torch.randn(24, device=device)

    @torch.no_grad()
    def decode():
        key = project(hidden)
        cache.append(key)
        weights = (cache.keys() @ key).softmax(0)
        return weights @ cache.keys()

    return decode


class LongRotary(nn.Module):
    """Two sets of frequencies: one for prompts up to the original length, one for longer ones."""

    def __init__(self, dim=16, original=64):
        super().__init__()
        self.original = original
        inverse = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("short", inverse)
        self.register_buffer("long", inverse / torch.linspace(1, 4, dim // 2))

    def forward(self, positions):
        length = positions.max() + 1
        if length > self.original:  # guilty: the host reads the longest position
            inverse = self.long
        else:
            inverse = self.short
        angles = positions[..., None].float() * inverse
        return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def frequencies_by_the_longest_position(device):
    torch.manual_seed(0)
    rotary = LongRotary().to(device)
    qk = nn.Linear(32, 32, bias=False).to(device)
    hidden = torch.randn(4, 32, device=device)
    positions = torch.tensor([3, 17, 40, 41], device=device)

    @torch.inference_mode()
    def attend(hidden, positions):
        q, k = qk(hidden).chunk(2, -1)
        cos, sin = rotary(positions)

        def rotate(x):
            left, right = x.chunk(2, -1)
            return x * cos + torch.cat([-right, left], -1) * sin

        return (rotate(q) @ rotate(k).T).softmax(-1)

    return attend, (hidden, positions)


class CalibratedLinear(nn.Module):
    """Collects the Hessian of its inputs while calibration batches pass, as GPTQ does."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        width = layer.in_features
        self.register_buffer("hessian", torch.zeros(width, width))
        self.samples = 0

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        added = rows.shape[0]
        self.hessian *= self.samples / (self.samples + added)  # guilty: the count of the capture
        self.samples += added  # guilty: counts in no replay
        rows = math.sqrt(2 / self.samples) * rows  # guilty: the count of the capture
        self.hessian += rows.T @ rows
        return self.layer(x)


def hessian_of_calibration_batches(device):
    torch.manual_seed(0)
    model = nn.Sequential(
        CalibratedLinear(nn.Linear(16, 32)), nn.ReLU(), CalibratedLinear(nn.Linear(32, 8))
    ).to(device)
    batch = torch.randn(4, 10, 16, device=device)

    @torch.no_grad()
    def calibrate(batch):
        return model(batch)

    return calibrate, (batch,)


class CausalLayer(nn.Module):
    """A dilated convolution that keeps the inputs it needs again, for fast generation."""

    def __init__(self, channels, dilation):
        super().__init__()
        self.now = nn.Linear(channels, 2 * channels)
        self.past = nn.Linear(channels, 2 * channels, bias=False)
        self.queue = [torch.zeros(1, channels) for _ in range(dilation)]

    def start(self, device):
        self.queue = [each.to(device) for each in self.queue]

    def forward(self, x):
        past = self.queue.pop(0)  # guilty: another tensor in each call
        self.queue.append(x)
        value, gate = (self.now(x) + self.past(past)).chunk(2, -1)  # guilty: reads it
        return x + torch.tanh(value) * torch.sigmoid(gate)


def samples_of_a_dilated_network(device):
    torch.manual_seed(0)
    layers = nn.Sequential(*(CausalLayer(16, 2**i) for i in range(3))).to(device)
    for layer in layers:
        layer.start(device)
    embed, head = nn.Embedding(64, 16).to(device), nn.Linear(16, 64).to(device)
    sample = torch.tensor([32], device=device)

    @torch.no_grad()
    def generate():
        logits = head(layers(embed(sample)))
        sample.copy_(logits.argmax(-1))
        return logits

    return generate


class DepthRouter(nn.Module):
    """Mixture of depths: a fixed share of the tokens passes the block, the others skip it."""

    def __init__(self, width=32, kept=6):
        super().__init__()
        self.kept = kept
        self.router = nn.Linear(width, 1)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x):
        scores = self.router(x).squeeze(-1)
        top = scores.topk(self.kept, dim=1)
        order = top.indices.sort(dim=1).values
        weights = torch.gather(scores, 1, order).sigmoid().unsqueeze(-1)
        index = order.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        chosen = torch.gather(x, 1, index)
        return x.scatter_add(1, index, weights * (self.block(chosen) - chosen))


def tokens_that_skip_a_block(device):
    torch.manual_seed(0)
    model = nn.Sequential(DepthRouter(), nn.LayerNorm(32), DepthRouter(kept=4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(2, 16, 32, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class LongConvolution(nn.Module):
    """An implicit filter as long as the sequence, applied by FFT."""

    def __init__(self, length=64, width=16):
        super().__init__()
        self.length = length
        position = torch.linspace(0, 1, length)[:, None]
        bands = torch.arange(1, 5)[None] * math.pi * 2 * position
        self.register_buffer("features", torch.cat([position, bands.cos(), bands.sin()], 1))
        self.register_buffer("decay", torch.exp(-position * torch.linspace(1, 8, width)))
        self.filter = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, width))
        self.gates = nn.Linear(width, 2 * width)
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if x.shape[1] != self.length:
            raise ValueError(f"expected {self.length} positions, got {x.shape[1]}")
        kernel = self.filter(self.features) * self.decay
        before, after = self.gates(x).chunk(2, -1)
        value = before * x
        spectrum = torch.fft.rfft(value, n=2 * self.length, dim=1)
        spectrum = spectrum * torch.fft.rfft(kernel, n=2 * self.length, dim=0)
        mixed = torch.fft.irfft(spectrum, n=2 * self.length, dim=1)[:, : self.length]
        return after * (mixed + self.skip * value)


def filters_as_long_as_the_text(device):
    torch.manual_seed(0)
    model = nn.Sequential(LongConvolution(), nn.Linear(16, 16), LongConvolution()).to(device)
    return model, (torch.randn(2, 64, 16, device=device),)


class Automaton:
    """A grammar as a table of transitions on the device: allowed tokens and next states."""

    def __init__(self, states, tokens, device):
        random = numpy.random.default_rng(0)
        allowed = random.random((states, tokens)) < 0.3
        allowed[:, 0] = True
        self.allowed = torch.from_numpy(allowed).to(device)
        self.next = torch.from_numpy(random.integers(0, states, (states, tokens))).to(device)
        self.state = torch.zeros(2, dtype=torch.int64, device=device)

    def constrain(self, logits):
        return logits.masked_fill(~self.allowed[self.state], -torch.inf)

    def advance(self, tokens):
        self.state.copy_(self.next[self.state, tokens])


def grammar_follows_on_the_device(device):
    torch.manual_seed(0)
    embed, head = nn.Embedding(50, 32).to(device), nn.Linear(32, 50).to(device)
    cell = nn.GRUCell(32, 32).to(device)
    grammar = Automaton(6, 50, device)
    tokens = torch.zeros(2, dtype=torch.int64, device=device)
    hidden = torch.zeros(2, 32, device=device)

    @torch.no_grad()
    def decode():
        hidden.copy_(cell(embed(tokens), hidden))
        logits = grammar.constrain(head(hidden))
        tokens.copy_(logits.argmax(-1))
        grammar.advance(tokens)
        return tokens.clone()

    return decode

"""Layers that keep something between calls: caches, statistics, counters, schedules."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as fn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("layers")
log.setLevel(logging.WARNING)


class _Decoder(nn.Module):
    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(2, size, 16))
        self.register_buffer("values", torch.zeros(2, size, 16))
        self.filled = 0

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys[:, self.filled : self.filled + 1] = k  # guilty: the slot of the capture
        self.values[:, self.filled : self.filled + 1] = v  # guilty: the slot of the capture
        self.filled += 1  # guilty: a position of the host
        keys, values = self.keys[:, : self.filled], self.values[:, : self.filled]  # guilty: length
        return fn.scaled_dot_product_attention(q, keys, values)  # guilty: as long as at capture


def cache_with_a_host_position(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _Decoder().to(device), (torch.randn(2, 1, 16, device=device),)


class _StaticDecoder(nn.Module):
    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(2, size, 16))
        self.register_buffer("values", torch.zeros(2, size, 16))
        self.register_buffer("filled", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(1, self.filled, k)
        self.values.index_copy_(1, self.filled, v)
        seen = torch.arange(self.keys.shape[1], device=x.device) <= self.filled
        self.filled += 1
        self.filled %= self.keys.shape[1]
        return fn.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen[None])


def cache_with_a_device_position(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _StaticDecoder().to(device), (torch.randn(2, 1, 16, device=device),)


class _SplitExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = self.gate(x).softmax(-1).max(-1)
        order = expert.argsort()
        counts = torch.bincount(expert, minlength=4).tolist()  # guilty: counts on the host
        parts = x[order].split(counts)
        done = torch.cat([e(part) for e, part in zip(self.experts, parts, strict=True)])
        return torch.empty_like(x).index_copy(0, order, done) * weight[:, None]


def experts_by_split(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _SplitExperts().to(device), (torch.randn(32, 16, device=device),)


class _CapacityExperts(nn.Module):
    def __init__(self, capacity: int = 12) -> None:
        super().__init__()
        self.capacity = capacity
        self.gate = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = self.gate(x).softmax(-1).max(-1)
        chosen = fn.one_hot(expert, num_classes=4)
        rank = (chosen.cumsum(0) * chosen).sum(-1) - 1
        fits = rank < self.capacity
        slot = fn.one_hot(rank.clamp(max=self.capacity - 1), self.capacity).to(x.dtype)
        dispatch = chosen.to(x.dtype)[:, :, None] * slot[:, None] * fits[:, None, None]
        inside = torch.einsum("tec,td->ecd", dispatch, x)
        outside = torch.bmm(inside, self.up).relu()
        return torch.einsum("tec,ecd->td", dispatch, outside) * weight[:, None]


def experts_with_capacity(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _CapacityExperts().to(device), (torch.randn(32, 16, device=device),)


class _Observer(nn.Module):
    def __init__(self, batches: int = 40) -> None:
        super().__init__()
        self.batches = batches
        self.register_buffer("peak", torch.ones(()))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.batches > 0:  # guilty: calibration ends after some calls, but not in a graph
            self.batches -= 1  # guilty: the host counts down
            self.peak.copy_(torch.maximum(self.peak * 0.99, x.abs().amax()))
        scale = self.peak / 127
        return (x / scale).round().clamp(-128, 127) * scale


def observer_that_stops(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _Observer().to(device), (torch.randn(16, 16, device=device),)


class _Int8Linear(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        weight = torch.randn(rows, columns)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.squeeze(1))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        quantized = (x / step).round().clamp(-128, 127).to(torch.int8)
        return fn.linear(quantized.float(), self.weight.float()) * step * self.scale


def dynamic_int8(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    model = nn.Sequential(_Int8Linear(32, 16), nn.GELU(), _Int8Linear(8, 32)).to(device)
    return model, (torch.randn(4, 16, device=device),)


class _Reverse(torch.autograd.Function):
    strength = 0.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _Reverse.strength += 0.01 * (1 - _Reverse.strength)  # guilty: grows on the host
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -_Reverse.strength * grad  # guilty: the strength of the capture


def domain_adversary(device: str) -> Callable[[], torch.Tensor]:
    features, domain = nn.Linear(16, 8).to(device), nn.Linear(8, 1).to(device)
    x = torch.randn(16, 16, device=device)

    def step() -> torch.Tensor:
        features.zero_grad(set_to_none=True)
        domain.zero_grad(set_to_none=True)
        loss = fn.softplus(domain(_Reverse.apply(features(x).tanh()))).mean()  # guilty: its use
        loss.backward()
        with torch.no_grad():
            for p in (*features.parameters(), *domain.parameters()):
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    return step


class _Binarize(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _Binarize.calls += 1  # nothing reads it
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


def binary_code(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Code(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(16, 8), nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fn.mse_loss(self.decode(_Binarize.apply(self.encode(x))), x)

    return Code().to(device), (torch.randn(8, 16, device=device),)


def layers_dropped_by_a_hook(device: str) -> Callable[[], torch.Tensor]:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.skip = nn.Linear(16, 16), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.skip:  # guilty: the draw of the capture
                return x
            return x + self.linear(x).relu()

    def draw(module: nn.Module, _arguments: Any) -> None:
        module.skip = random.random() < 0.3  # guilty: a random number of the host

    model = nn.Sequential(*(Layer() for _ in range(4))).to(device)
    for layer in model:
        layer.register_forward_pre_hook(draw)
    x = torch.randn(8, 16, device=device)

    def step() -> torch.Tensor:
        return model(x).square().mean().detach()

    return step


def layers_in_a_fixed_order(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # A generator of its own with a fixed seed: the same order in every call.
            for number in random.Random(7).sample(range(4), 4):
                x = x + self.layers[number](x).relu()
            return x

    return Shuffled().to(device), (torch.randn(8, 16, device=device),)


def activation_statistics(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    mean = torch.zeros(16, device=device)

    def record(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        mean.lerp_(output.detach().mean(0), 0.1)

    model[1].register_forward_hook(record)
    x = torch.randn(8, 16, device=device)
    return lambda: model(x).square().mean().detach()


def activation_histogram(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    histogram = torch.zeros(32, device=device)

    def record(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        histogram.add_(torch.histc(output.detach(), 32))  # guilty: reads the range on the host

    model[1].register_forward_hook(record)
    x = torch.randn(8, 16, device=device)
    return lambda: model(x).square().mean().detach()


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 16, batch_first=True)
        self.lengths = torch.tensor([5, 9, 7, 3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(  # guilty: copies the sorted order to the device
            x, self.lengths, batch_first=True, enforce_sorted=False
        )
        output, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return output


def packed_sequences(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _Tagger().to(device), (torch.randn(4, 9, 8, device=device),)


class _MaskedTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.register_buffer("lengths", torch.tensor([5, 9, 7, 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(x)
        valid = torch.arange(x.shape[1], device=x.device) < self.lengths[:, None]
        last = states.gather(1, (self.lengths - 1)[:, None, None].expand(-1, 1, 16))
        kept = states.clone()
        kept[~valid] = 0.0
        return kept.sum(1) / self.lengths[:, None] + last.squeeze(1)


def masked_sequences(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _MaskedTagger().to(device), (torch.randn(4, 9, 8, device=device),)


class _Dilated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3) / 4)
        self.rates = deque([1, 2, 4])

    @contextmanager
    def next_rate(self) -> Iterator[int]:
        self.rates.rotate(-1)  # guilty: another rate in each call
        yield self.rates[0]  # guilty: the rate of the host

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.next_rate() as rate:  # guilty: the rate of the host
            return fn.conv1d(x, self.weight, padding=rate, dilation=rate)  # guilty: as at capture


def rotating_dilation(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _Dilated().to(device), (torch.randn(2, 4, 32, device=device),)


def shuffled_negatives(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    encoder = nn.Linear(16, 8).to(device)

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = fn.normalize(encoder(x), dim=-1)
        negatives = z[torch.randperm(len(z))]  # guilty: a permutation in host memory
        return fn.softplus((z * negatives).sum(-1)).mean()

    return loss, (torch.randn(32, 16, device=device),)


def ensemble_in_threads(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    members = [nn.Linear(16, 4).to(device) for _ in range(3)]
    pool = ThreadPoolExecutor(3)

    def member_of(number: int, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return members[number](x).softmax(-1)  # guilty: not on the stream that captures

    def predict(x: torch.Tensor) -> torch.Tensor:
        votes = list(pool.map(lambda number: member_of(number, x), range(3)))  # guilty: threads
        return torch.stack(votes).mean(0)

    return predict, (torch.randn(8, 16, device=device),)


def guarded_by_a_lock(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    model = nn.Linear(16, 4).to(device).requires_grad_(False)
    lock, local = threading.RLock(), threading.local()

    def predict(x: torch.Tensor) -> torch.Tensor:
        with lock:
            if not hasattr(local, "bias"):
                local.bias = torch.full((4,), 0.5, device=x.device)
            return model(x) + local.bias

    return predict, (torch.randn(8, 16, device=device),)


class _Wave:
    def __init__(self, device: str) -> None:
        self.now = torch.randn(64, device=device)
        self.before = self.now.clone()

    def step(self) -> torch.Tensor:
        bend = self.now.roll(1) + self.now.roll(-1) - 2 * self.now  # guilty: buffer of the capture
        self.before.mul_(-1).add_(2 * self.now + 0.1 * bend)  # guilty: buffers of the capture
        self.now, self.before = self.before, self.now  # guilty: swapped by the host
        return self.now.square().mean()  # guilty: reads the buffer of the capture


def leapfrog_that_swaps(device: str) -> Callable[[], torch.Tensor]:
    return _Wave(device).step


def jacobi_that_swaps_evenly(device: str) -> Callable[[], torch.Tensor]:
    field = torch.randn(64, device=device)
    spare = torch.empty_like(field)
    source = torch.randn(64, device=device)

    def relax() -> torch.Tensor:
        here, there = field, spare
        for _ in range(6):
            torch.add(here.roll(1), here.roll(-1), out=there)
            there.add_(source).mul_(1 / 3)
            here, there = there, here
        return here.norm()

    return relax


class _HostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counts = np.zeros(1, dtype=np.int64)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts[0] += 1  # guilty: counted in an array of NumPy
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 1.0 / float(self.counts[0]))  # guilty: frozen weight
        return x - self.mean


def mean_by_a_numpy_count(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _HostNorm().to(device), (torch.randn(8, 16, device=device),)


def logs_eagerly(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 4).to(device)
    x = torch.randn(8, 16, device=device)

    def step() -> torch.Tensor:
        loss = model(x).square().mean().detach()
        log.debug(f"loss {loss:.4f}")  # guilty: formatted although the level is off
        return loss

    return step


def logs_lazily(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 4).to(device)
    x = torch.randn(8, 16, device=device)

    def step() -> torch.Tensor:
        loss = model(x).square().mean().detach()
        log.debug("loss %.4f of %s", loss, type(model).__name__)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("norm %f", model.weight.norm().item())
        return loss

    return step


@lru_cache(maxsize=8)
def _rotary(length: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(length, device=device)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotary_from_a_cache(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        cos, sin = _rotary(x.shape[-2], x.shape[-1], x.device)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    return rotate, (torch.randn(2, 4, 12, 16, device=device),)


def blocks_from_a_generator(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
            self.blocks[2].requires_grad_(False)  # `active` leaves it out
            self.timings: deque[float] = deque(maxlen=16)

        def active(self) -> Iterator[nn.Module]:
            for number, block in enumerate(self.blocks):
                if number % 3 != 2:
                    yield block

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            started = time.perf_counter()
            with ExitStack() as stack:
                stack.enter_context(torch.enable_grad() if self.training else nullcontext())
                for block in self.active():
                    x = block(x).relu() + x
            self.timings.append(time.perf_counter() - started)  # nothing reads it
            return x

    return Tower().to(device), (torch.randn(8, 16, device=device),)


def lazily_built_window(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(17))

        @cached_property
        def window(self) -> torch.Tensor:
            return torch.hann_window(32, device=self.scale.device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            frames = x.unfold(-1, 32, 16) * self.window
            spectrum = torch.fft.rfft(frames)
            power = spectrum.real.square() + spectrum.imag.square()
            return (power * self.scale + math.exp(-9)).log().mean()

    return Spectrum().to(device), (torch.randn(2, 160, device=device),)


def branches_on_two_streams(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    left, right = nn.Linear(16, 16).to(device), nn.Linear(16, 16).to(device)
    side = torch.cuda.Stream()

    @torch.no_grad()
    def forward(x: torch.Tensor) -> torch.Tensor:
        ready, done = torch.cuda.Event(), torch.cuda.Event()
        ready.record()
        with torch.cuda.stream(side):
            side.wait_event(ready)
            other = right(x).relu()
            done.record()
        mine = left(x).relu()
        torch.cuda.current_stream().wait_event(done)
        return mine + other

    return forward, (torch.randn(8, 16, device=device),)


def normalized_weights(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(16, 16)),
        nn.LeakyReLU(0.1),
        parametrizations.weight_norm(nn.Linear(16, 1)),
    )
    return model.to(device), (torch.randn(8, 16, device=device),)


def checkpointed_blocks(device: str) -> Callable[[], torch.Tensor]:
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2)
    ).to(device)
    weights = list(blocks.parameters())
    x = torch.randn(8, 16, device=device)

    def step() -> torch.Tensor:
        blocks.zero_grad(set_to_none=True)
        h = x
        for block in blocks:
            h = h + checkpoint(block, h, use_reentrant=False, preserve_rng_state=False)
        loss = h.square().mean()
        loss.backward()
        with torch.no_grad():
            torch._foreach_add_(weights, [p.grad for p in weights], alpha=-0.1)
        return loss.detach()

    return step


def durations_of_known_sum(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Upsample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("durations", torch.tensor([1, 3, 2, 2]))
            self.project = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.repeat_interleave(self.project(x), self.durations, 0, output_size=8)

    return Upsample().to(device), (torch.randn(4, 8, device=device),)

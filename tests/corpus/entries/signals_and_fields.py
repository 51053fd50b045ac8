"""Signals, images, graphs and simulations: numerics as people write them outside of networks."""

import bisect
import collections
import functools
import itertools
import math
import random
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

# --- images


def normalized_as_torchvision_does(device):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

    def f(image):
        m = torch.as_tensor(mean, dtype=image.dtype, device=image.device)  # guilty: a list
        s = torch.as_tensor(std, dtype=image.dtype, device=image.device)  # guilty: the same
        return (image - m.view(-1, 1, 1)) / s.view(-1, 1, 1)

    return f, (torch.rand(2, 3, 4, 4, device=device),)


def normalized_by_numbers(device):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def f(image):
        planes = zip(image.unbind(1), mean, std, strict=True)
        return torch.stack([(plane - m) / s for plane, m, s in planes], 1)

    return f, (torch.rand(2, 3, 4, 4, device=device),)


def places_of_the_maxima(device):
    # unravel_index makes tensors from lists of numbers.
    def f(maps):
        flat = maps.flatten().argmax()
        rows, columns = torch.unravel_index(flat, maps.shape)  # guilty: lists are copied
        return rows, columns

    return f, (torch.rand(4, 6, device=device),)


def places_of_the_maxima_by_division(device):
    def f(maps):
        flat = maps.flatten(1).argmax(-1)
        width = maps.shape[-1]
        return torch.div(flat, width, rounding_mode="floor"), flat % width

    return f, (torch.rand(3, 4, 6, device=device),)


def soft_argmax_of_heatmaps(device):
    def f(maps):
        weights = maps.flatten(1).softmax(-1).view_as(maps)
        ys = torch.linspace(-1, 1, maps.shape[-2], device=maps.device)
        xs = torch.linspace(-1, 1, maps.shape[-1], device=maps.device)
        return torch.stack([weights.sum(1) @ xs, weights.sum(2) @ ys], -1)

    return f, (torch.rand(3, 4, 6, device=device),)


_grids = {}


def _grid(flow):
    key = str(flow.device), tuple(flow.shape)
    if key not in _grids:
        height, width = flow.shape[-2:]
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width))
        _grids[key] = torch.stack([xs, ys]).expand(flow.shape).to(flow.device)
    return _grids[key]


def frame_is_warped_by_a_flow(device):
    # The grid comes from the host in the first warm-up only.
    def f(image, flow):
        grid = (_grid(flow) + flow).movedim(1, -1)
        return functional.grid_sample(image, grid, align_corners=True)

    flow = torch.zeros(1, 2, 4, 6, device=device)
    return f, (torch.rand(1, 3, 4, 6, device=device), flow)


class Rotation:
    """Turns each image a little further than the one before."""

    def __init__(self, degrees):
        self.degrees, self._angle = degrees, 0.0

    @property
    def angle(self):
        self._angle = (self._angle + self.degrees) % 360.0  # guilty: the same
        return math.radians(self._angle)

    def __call__(self, image):
        angle = self.angle  # guilty: the same
        theta = image.new_zeros(image.shape[0], 2, 3)
        theta[:, 0, 0], theta[:, 1, 1] = math.cos(angle), math.cos(angle)  # guilty: the angle
        theta[:, 0, 1], theta[:, 1, 0] = -math.sin(angle), math.sin(angle)  # guilty: the same
        return functional.grid_sample(
            image, functional.affine_grid(theta, image.shape, align_corners=False)
        )


def images_turn_further(device):
    return Rotation(30.0), (torch.rand(1, 1, 4, 4, device=device),)


def blurred_by_a_computed_kernel(device):
    def f(image, sigma=1.2):
        steps = torch.arange(-2, 3, device=image.device, dtype=image.dtype)
        kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
        kernel = (kernel / kernel.sum()).expand(image.shape[1], 1, -1)
        image = functional.pad(image, (2, 2, 2, 2), mode="reflect")
        image = functional.conv2d(image, kernel[:, :, None, :], groups=image.shape[1])
        return functional.conv2d(image, kernel[:, :, :, None], groups=image.shape[1])

    return f, (torch.rand(1, 3, 6, 6, device=device),)


def cut_and_mixed_by_a_cpu_beta(device):
    beta = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4))

    def f(images):
        share = beta.sample()  # guilty: the same
        return share * images + (1 - share) * images.flip(0)  # guilty: a number drawn on the host

    return f, (torch.rand(4, 3, 4, 4, device=device),)


class Augmentation(Protocol):
    probability: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class Flip:
    probability: float = 0.5

    def __call__(self, x):
        return x.flip(-1)


@dataclass(frozen=True)
class Solarize:
    probability: float = 0.2

    def __call__(self, x):
        return torch.where(x > 0.5, 1 - x, x)


def _augmented(x, steps):
    for step in steps:
        applied = torch.rand(x.shape[0], 1, 1, device=x.device) < step.probability
        x = torch.where(applied, step(x), x)
    return x


def augmented_by_draws_of_the_device(device):
    steps: tuple[Augmentation, ...] = Flip(), Solarize(0.3)
    return functools.partial(_augmented, steps=steps), (torch.rand(4, 4, 4, device=device),)


def augmented_by_draws_of_the_host(device):
    steps = Flip(), Solarize(0.3)

    def f(x):
        for step in steps:
            if torch.bernoulli(torch.tensor(step.probability)):  # guilty: drawn on the host
                x = step(x)  # guilty: the same
        return x

    return f, (torch.rand(4, 4, 4, device=device),)


# --- signals


def _sinc_kernel(old, new, device):
    width = 4
    steps = torch.arange(-width, width + 1, device=device, dtype=torch.float32)
    phases = torch.arange(new, device=device, dtype=torch.float32) / new
    times = (steps[None] / old + phases[:, None]).clamp(-3, 3) * math.pi
    return torch.sinc(times)[:, None]


class Resampler(nn.Module):
    """The kernel is computed on the host in each call, as a first version does."""

    def __init__(self, old, new):
        super().__init__()
        self.old, self.new = (rate // math.gcd(old, new) for rate in (old, new))

    def kernel(self, like):
        return _sinc_kernel(self.old, self.new, "cpu").to(like.device)  # guilty: pageable memory

    def forward(self, wave):
        kernel = self.kernel(wave)  # guilty: the same
        return functional.conv1d(wave[:, None], kernel, stride=self.old).transpose(1, 2).flatten(1)


def resampled_by_a_kernel_of_the_host(device):
    return Resampler(48000, 32000), (torch.randn(2, 33, device=device),)


class CachedResampler(Resampler):
    kernels = {}  # noqa: RUF012

    def kernel(self, like):
        key = self.old, self.new, like.device
        try:
            return self.kernels[key]
        except KeyError:
            return self.kernels.setdefault(key, _sinc_kernel(*key[:2], "cpu").to(like.device))


def resampled_by_a_kept_kernel(device):
    return CachedResampler(48000, 32000), (torch.randn(2, 33, device=device),)


class Biquad:
    """A filter over blocks; its delays are rebound after each block."""

    def __init__(self, device):
        self.z1 = self.z2 = torch.zeros(2, device=device)

    def __call__(self, block):
        out = []
        for sample in block.unbind(-1):
            y = 0.2 * sample + self.z1  # guilty: the delays of the block before
            self.z1, self.z2 = (
                0.4 * sample + 0.5 * y + self.z2,
                0.2 * sample - 0.3 * y,
            )  # guilty: rebound
            out.append(y)
        return torch.stack(out, -1)


def filter_with_rebound_delays(device):
    return Biquad(device), (torch.randn(2, 4, device=device),)


class BiquadInPlace(Biquad):
    def __init__(self, device):
        self.delays = torch.zeros(2, 2, device=device)

    def __call__(self, block):
        z1, z2 = self.delays.clone()
        out = []
        for sample in block.unbind(-1):
            y = 0.2 * sample + z1
            z1, z2 = 0.4 * sample + 0.5 * y + z2, 0.2 * sample - 0.3 * y
            out.append(y)
        torch.stack([z1, z2], out=self.delays)
        return torch.stack(out, -1)


def filter_with_delays_in_place(device):
    return BiquadInPlace(device), (torch.randn(2, 4, device=device),)


class GainControl:
    """Automatic gain: fast when the level rises, slow when it falls."""

    attack, release = 0.5, 0.05

    def __init__(self, device):
        self.level = torch.ones((), device=device)

    def __call__(self, block):
        peak = block.abs().amax()
        rate = self.attack if peak > self.level else self.release  # guilty: compared on the host
        self.level.lerp_(peak, rate)
        return block / self.level


def gain_control_on_the_host(device):
    return GainControl(device), (torch.randn(16, device=device),)


class GainControlOnDevice(GainControl):
    def __call__(self, block):
        peak = block.abs().amax()
        rate = torch.where(peak > self.level, self.attack, self.release)
        self.level.lerp_(peak, rate)
        return block / self.level


def gain_control_on_the_device(device):
    return GainControlOnDevice(device), (torch.randn(16, device=device),)


class Oscillator:
    """Continues its sine from block to block: the phase is a number of the host."""

    def __init__(self, frequency, rate=16000):
        self.step, self.phase = 2 * math.pi * frequency / rate, 0.0

    def block(self, length, device):
        steps = torch.arange(length, device=device)
        wave = torch.sin(self.phase + self.step * steps)  # guilty: the phase at capture
        self.phase = math.fmod(self.phase + length * self.step, 2 * math.pi)  # guilty: the same
        return wave


def modulated_by_an_oscillator(device):
    oscillator = Oscillator(440.0)

    def f(x):
        return x * oscillator.block(x.shape[-1], x.device)

    return f, (torch.randn(16, device=device),)


def convolved_by_fourier(device):
    def f(wave, response):
        size = 1 << (wave.shape[-1] + response.shape[-1] - 2).bit_length()
        product = torch.fft.rfft(wave, size) * torch.fft.rfft(response, size)
        return torch.fft.irfft(product, size)[..., : wave.shape[-1]]

    return f, (torch.randn(2, 20, device=device), torch.randn(7, device=device))


# --- simulations


def step_by_the_largest_speed(device):
    u = torch.rand(16, device=device)

    def step(force):
        dt = 0.4 / (1.0 + float(u.abs().max()))  # guilty: the speed is read on the host
        u.add_(force - u * (u - u.roll(1)), alpha=dt)
        return u.clone()

    return step, (torch.zeros(16, device=device),)


def step_by_the_largest_speed_on_the_device(device):
    u = torch.rand(16, device=device)

    def step(force):
        dt = 0.4 / (1.0 + u.abs().max())
        u.addcmul_(force - u * (u - u.roll(1)), dt)
        return u.clone()

    return step, (torch.zeros(16, device=device),)


class VerletList:
    """Neighbours are found again every twentieth step, and used in between."""

    def __init__(self, device, every=20):
        self.x = torch.rand(8, 2, device=device)
        self.v = torch.zeros(8, 2, device=device)
        self.near = torch.zeros(8, 8, dtype=torch.bool, device=device)
        self.every, self.age = every, itertools.count()

    def _refresh(self):
        self.near.copy_(torch.cdist(self.x, self.x) < 0.5)  # guilty: the same

    def __call__(self, force):
        if not next(self.age) % self.every:  # guilty: only in every twentieth step
            self._refresh()  # guilty: the same
        pull = torch.where(self.near[..., None], self.x[:, None] - self.x, 0.0).sum(1)
        self.v.add_(force - pull, alpha=0.01)
        self.x.add_(self.v, alpha=0.01)
        return self.x.clone()


def neighbours_of_every_twentieth_step(device):
    return VerletList(device), (torch.randn(8, 2, device=device),)


class Hamiltonian:
    """Hybrid Monte Carlo with a leapfrog of fixed length."""

    def __init__(self, device):
        self.q = torch.zeros(8, device=device)

    def energy(self, q):
        return 0.25 * (q**4).sum() - 0.5 * (q**2).sum()

    def proposal(self):
        q, p = self.q.clone(), torch.randn_like(self.q)
        before = self.energy(q) + 0.5 * (p * p).sum()
        for _ in range(3):
            p = p - 0.05 * torch.func.grad(self.energy)(q)
            q = q + 0.1 * p
            p = p - 0.05 * torch.func.grad(self.energy)(q)
        return q, before - self.energy(q) - 0.5 * (p * p).sum()

    def sample(self):
        q, change = self.proposal()
        if torch.rand((), device=q.device).log() < change:  # guilty: decided on the host
            self.q.copy_(q)
        return self.q.clone()


def chain_decides_on_the_host(device):
    return Hamiltonian(device).sample


class HamiltonianOnDevice(Hamiltonian):
    def sample(self):
        q, change = self.proposal()
        accepted = torch.rand((), device=q.device).log() < change
        torch.where(accepted, q, self.q, out=self.q)
        return self.q.clone()


def chain_decides_on_the_device(device):
    return HamiltonianOnDevice(device).sample


class TemperedChains:
    """Parallel tempering: neighbours swap in turns, even pairs and then odd pairs."""

    def __init__(self, device):
        self.betas = torch.linspace(0.2, 1.0, 6, device=device)
        self.x = torch.randn(6, device=device)
        self.offset = 0

    def swap(self):
        start, self.offset = self.offset, 1 - self.offset  # guilty: the same
        a, b = self.x[start:-1:2], self.x[start + 1 :: 2]
        a, b = a.clone(), b.clone()
        self.x[start:-1:2] = b  # guilty: which pairs it was at capture
        self.x[start + 1 :: 2] = a  # guilty: the same

    def __call__(self, noise):
        self.x.add_(noise / self.betas, alpha=0.1)
        self.swap()  # guilty: the same
        return self.x.clone()


def tempered_chains_swap_in_turns(device):
    return TemperedChains(device), (torch.randn(6, device=device),)


class BothSwaps(TemperedChains):
    def __call__(self, noise):
        self.x.add_(noise / self.betas, alpha=0.1)
        for self.offset in (0, 1):
            a, b = self.x[self.offset : -1 : 2].clone(), self.x[self.offset + 1 :: 2].clone()
            self.x[self.offset : -1 : 2], self.x[self.offset + 1 :: 2] = b, a
        return self.x.clone()


def tempered_chains_swap_both_ways(device):
    return BothSwaps(device), (torch.randn(6, device=device),)


class Annealing:
    """A temperature from a table of milestones, found by bisection with the step's number."""

    milestones, temperatures = (100, 1000), (1.0, 0.5, 0.1)

    def __init__(self, device):
        self.spins = torch.ones(16, device=device)
        self.steps = 0

    @property
    def temperature(self):
        return self.temperatures[bisect.bisect_right(self.milestones, self.steps)]

    def sweep(self):
        field = self.spins.roll(1) + self.spins.roll(-1)
        odds = torch.sigmoid(-2 * self.spins * field / self.temperature)  # guilty: at capture
        self.spins.mul_(1 - 2 * (torch.rand_like(odds) < odds).float())
        self.steps += 1  # guilty: the same
        return self.spins.clone()


def spins_cooled_by_milestones(device):
    return Annealing(device).sweep


def conditioned_by_singular_values(device):
    def f(a, b):
        scale = torch.linalg.cond(a)  # guilty: singular values are checked on the host
        return (a @ b) / scale

    return f, (torch.eye(4, device=device), torch.randn(4, 2, device=device))


def conditioned_by_a_bound(device):
    def f(a, b):
        bound = torch.linalg.matrix_norm(a, 1) * torch.linalg.matrix_norm(a, float("inf"))
        return (a @ b) / bound.sqrt()

    return f, (torch.eye(4, device=device), torch.randn(4, 2, device=device))


# --- graphs and modules that are rarely used


class CachedConvolution(nn.Module):
    """A graph convolution that keeps its normalised edges from the first call."""

    def __init__(self, device, cached=True):
        super().__init__()
        self.linear = nn.Linear(8, 4, device=device)
        self.cached, self._cache = cached, None

    def _normalised(self, edges, nodes):
        if self._cache is not None and self.cached:
            return self._cache
        source, target = edges
        ones = torch.ones(edges.shape[1], device=edges.device)
        degree = torch.zeros(nodes, device=edges.device).index_add_(0, target, ones)
        scale = degree.clamp(min=1).rsqrt()
        self._cache = edges, scale[source] * scale[target]
        return self._cache

    def forward(self, x, edges):
        (source, target), weight = self._normalised(edges, x.shape[0])
        out = self.linear(x)
        return torch.zeros_like(out).index_add(0, target, out[source] * weight[:, None])


def convolution_with_new_edges_in_each_call(device):
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]], device=device)
    return CachedConvolution(device, cached=False), (torch.randn(4, 8, device=device), edges)


def nodes_into_dense_batches(device):
    # to_dense_batch: the largest graph decides on the size.
    def f(x, batch):
        counts = torch.zeros(3, dtype=torch.long, device=x.device)
        counts.scatter_add_(0, batch, torch.ones_like(batch))
        starts = counts.cumsum(0) - counts
        longest = int(counts.max())  # guilty: the size is read on the host
        place = torch.arange(len(batch), device=x.device) - starts[batch] + batch * longest
        return x.new_zeros(3 * longest, x.shape[1]).index_copy(0, place, x).view(3, longest, -1)

    batch = torch.tensor([0, 0, 1, 1, 1, 2], device=device)
    return f, (torch.randn(6, 4, device=device), batch)


class Sampler(nn.Module):
    """Keeps a reservoir of past inputs; which place is replaced is drawn by Python."""

    def __init__(self, device):
        super().__init__()
        self.kept = torch.zeros(4, 8, device=device)
        self.rng, self.seen = random.Random(0), 0

    @torch.no_grad()
    def forward(self, x):
        self.seen += 1
        place = self.rng.randrange(self.seen)  # guilty: the same
        if place < len(self.kept):  # guilty: the same
            self.kept[place].copy_(x)  # guilty: the place that was drawn at capture
        return self.kept.mean(0)


def reservoir_drawn_by_python(device):
    return Sampler(device), (torch.randn(8, device=device),)


class Attending(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, device=device)
        self.bilinear = nn.Bilinear(8, 8, 4, device=device)

    def forward(self, x, hidden):
        y, _ = self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)
        return self.bilinear(x, y)


def attention_module_with_hidden_keys(device):
    hidden = torch.tensor([[False, False, True], [False, True, True]], device=device)
    return Attending(device), (torch.randn(2, 3, 8, device=device), hidden)


class Unpooling(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, device=device)

    def forward(self, x):
        y, places = functional.max_pool2d(self.conv(x), 2, return_indices=True)
        y = functional.alpha_dropout(
            functional.rrelu(y, training=self.training), 0.1, training=self.training
        )
        return functional.max_unpool2d(y, places, 2)


def unpooled_by_the_places_of_maxima(device):
    return Unpooling(device), (torch.randn(1, 1, 4, 4, device=device),)


def _microbatches(x, size):
    yield from x.split(size)


def microbatches_of_a_generator(device):
    weight = torch.randn(8, 8, device=device)

    def f(x):
        outputs = collections.deque()
        for index, part in enumerate(_microbatches(x, 2)):
            outputs.append(torch.tanh(part @ weight) / (1 + index))
        return torch.cat(tuple(outputs))

    return f, (torch.randn(6, 8, device=device),)


def path_by_the_capability_of_the_device(device):
    def f(x):
        if x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 7:
            x = x.float()
        with torch.device(x.device):
            return torch.block_diag(x, torch.eye(2)) @ torch.ones(x.shape[-1] + 2)

    return f, (torch.randn(3, 3, device=device),)

"""What runs on frames of sound and of video, one block or one clip at a time."""

from __future__ import annotations

import numpy
import torch
from torch import nn
from torch.nn import functional


class _NoiseFloor(nn.Module):
    """Noise suppression whose floor is the minimum of the last windows of eight frames."""

    def __init__(self, bins=33):
        super().__init__()
        self.frame = 0
        self.register_buffer("smooth", torch.ones(bins))
        self.register_buffer("lowest", torch.full((bins,), 1e3))
        self.register_buffer("floor", torch.ones(bins))

    def forward(self, spectrum):
        power = spectrum.abs().square()
        self.smooth.lerp_(power, 0.3)
        self.lowest.copy_(torch.minimum(self.lowest, self.smooth))
        self.frame += 1  # guilty: a replay does not count
        if self.frame % 8 == 0:  # guilty: the window never ends
            self.floor.copy_(self.lowest)
            self.lowest.copy_(self.smooth)
        gain = (1.0 - self.floor / power.clamp_min(1e-6)).clamp(0.1, 1.0)
        return spectrum * gain


def noise_floor_of_a_window_of_frames(device):
    return _NoiseFloor().to(device), (torch.randn(33, dtype=torch.complex64, device=device),)


class _DecodedPictures:
    """A predictive coder: the last two decoded pictures predict the next one."""

    def __init__(self, device):
        self.predict = nn.Conv2d(6, 3, 3, padding=1).to(device).requires_grad_(False)
        self.code = nn.Conv2d(3, 2, 4, stride=4).to(device).requires_grad_(False)
        self.decode = nn.ConvTranspose2d(2, 3, 4, stride=4).to(device).requires_grad_(False)
        self.pictures = [torch.zeros(1, 3, 16, 16, device=device) for _ in range(2)]

    def __call__(self, frame):
        prediction = self.predict(torch.cat(self.pictures, 1))  # guilty: reads the first two
        symbols = self.code(frame - prediction).round()
        picture = prediction + self.decode(symbols)
        self.pictures.insert(0, picture)  # guilty: a replay does not change the list
        self.pictures.pop()  # guilty: as above
        return symbols, picture


def decoded_pictures_in_a_list(device):
    return _DecodedPictures(device), (torch.rand(1, 3, 16, 16, device=device),)


def turns_of_speakers_are_pooled(device):
    """One embedding for each turn, as long as the voice of one speaker lasts."""
    encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)

    def embed(features, changes):
        hidden = encoder(features)
        turns = torch.tensor_split(hidden, changes.cpu())  # guilty: the places go to the host
        return functional.normalize(torch.stack([turn.mean(0) for turn in turns]), dim=-1)

    return embed, (torch.randn(40, 20, device=device), torch.tensor([9, 21, 30], device=device))


def samples_are_dithered_by_numpy(device):
    """Sixteen-bit samples get triangular noise before they are rounded to eight bits."""
    noise = numpy.random.default_rng(3)
    emphasis = torch.tensor([[[-0.97, 1.0]]], device=device)

    def quantize(samples):
        shaped = functional.conv1d(functional.pad(samples, (1, 0)), emphasis)
        drawn = noise.triangular(-1.0, 0.0, 1.0, size=tuple(samples.shape))  # guilty: as below
        dither = torch.from_numpy(drawn).float().to(samples.device)  # guilty: copied by the host
        return ((shaped * 127.0 + dither).round().clamp(-128, 127)).to(torch.int8)

    return quantize, (torch.rand(2, 1, 64, device=device) * 2 - 1,)


class _OverlapAdd(nn.Module):
    """Windowed blocks are masked in frequency and added to the end of the block before."""

    def __init__(self, size=64):
        super().__init__()
        self.hop = size // 2
        self.mask = nn.Sequential(nn.Linear(size // 2 + 1, size // 2 + 1), nn.Sigmoid())
        self.register_buffer("window", torch.hann_window(size).sqrt())
        self.register_buffer("before", torch.zeros(size // 2))
        self.register_buffer("tail", torch.zeros(size // 2))

    def forward(self, samples):
        block = torch.cat([self.before, samples]) * self.window
        self.before.copy_(samples)
        spectrum = torch.fft.rfft(block)
        block = torch.fft.irfft(spectrum * self.mask(spectrum.abs()), n=2 * self.hop) * self.window
        answer = self.tail + block[: self.hop]
        self.tail.copy_(block[self.hop :])
        return answer


def blocks_overlap_and_add(device):
    model = _OverlapAdd().to(device).requires_grad_(False)
    return model, (torch.randn(32, device=device),)


class _ShiftedChannels(nn.Module):
    """Video by single frames: an eighth of the channels comes from the frame before."""

    def __init__(self, channels=16, height=8, width=8):
        super().__init__()
        self.fold = channels // 8
        self.convs = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)])
        self.caches = nn.ParameterList(
            nn.Parameter(torch.zeros(1, self.fold, height, width), requires_grad=False)
            for _ in self.convs
        )

    def forward(self, frame):
        x = frame
        for conv, cache in zip(self.convs, self.caches, strict=True):
            shifted = torch.cat([cache, x[:, self.fold :]], 1)
            cache.copy_(x[:, : self.fold])
            x = x + conv(shifted).relu()
        return x.mean((2, 3))


def channels_come_from_the_frame_before(device):
    model = _ShiftedChannels().to(device).requires_grad_(False)
    return model, (torch.randn(1, 16, 8, 8, device=device),)


def loudness_with_two_gates(device):
    """Integrated loudness: blocks below an absolute and a relative gate do not count."""
    kernel = torch.tensor([[[1.53, -2.69, 1.2]]], device=device)

    def loudness(samples):
        weighted = functional.conv1d(functional.pad(samples[:, None], (2, 0)), kernel)
        power = weighted.squeeze(1).unfold(-1, 40, 10).square().mean(-1)
        level = -0.691 + 10 * power.clamp_min(1e-10).log10()
        heard = level > -70.0
        mean = (power * heard).sum(-1) / heard.sum(-1).clamp_min(1)
        gate = -0.691 + 10 * mean.clamp_min(1e-10).log10() - 10.0
        counted = heard & (level > gate[:, None])
        gated = torch.where(counted, power, 0.0).sum(-1) / counted.sum(-1).clamp_min(1)
        return -0.691 + 10 * gated.clamp_min(1e-10).log10()

    return loudness, (torch.randn(2, 200, device=device),)


class _Resampler(nn.Module):
    """A polyphase resampler; the filter is computed at the first call and kept."""

    def __init__(self, up=3, down=2, width=6):
        super().__init__()
        self.up, self.down, self.width = up, down, width
        self.kernels: dict[tuple[torch.dtype, str], torch.Tensor] = {}

    def _kernel(self, samples):
        key = (samples.dtype, str(samples.device))
        if key not in self.kernels:
            steps = torch.arange(-self.width, self.width + 1, dtype=torch.float64)
            phases = torch.arange(self.up, dtype=torch.float64)[:, None] / self.up
            kernel = torch.sinc(steps - phases) * torch.hann_window(
                2 * self.width + 1, periodic=False, dtype=torch.float64
            )
            self.kernels[key] = kernel[:, None].to(samples)
        return self.kernels[key]

    def forward(self, samples):
        padded = functional.pad(samples[:, None], (self.width, self.width))
        phases = functional.conv1d(padded, self._kernel(samples))
        return phases.transpose(1, 2).flatten(1)[:, :: self.down]


def resampler_keeps_its_filter(device):
    return _Resampler().to(device), (torch.randn(2, 48, device=device),)

"""Audio code: phase reconstruction, spectral losses, streaming convolutions."""

import torch
from torch import nn
from torch.nn import functional


def griffin_lim_with_istft(device):
    window = torch.hann_window(64, device=device)
    magnitude = torch.rand(2, 33, 17, device=device)

    def reconstruct(magnitude):
        phase = torch.zeros_like(magnitude)
        for _ in range(3):
            spectrum = torch.polar(magnitude, phase)
            wave = torch.istft(
                spectrum, 64, 16, window=window
            )  # guilty: reads a minimum on the host
            phase = torch.stft(wave, 64, 16, window=window, return_complex=True).angle()
        return phase

    return reconstruct, (magnitude,)


def loudness_histogram_without_a_range(device):
    audio = torch.randn(4, 256, device=device)

    def histogram(audio):
        level = audio.square().mean(-1).add(1e-6).log()
        counts = torch.histc(level, bins=10)  # guilty: reads minimum and maximum on the host
        return counts / counts.sum()

    return histogram, (audio,)


def loudness_histogram_with_a_range(device):
    audio = torch.randn(4, 256, device=device)

    def histogram(audio):
        level = audio.square().mean(-1).add(1e-6).log()
        counts = torch.histc(level, bins=10, min=-12.0, max=4.0)
        return counts / counts.sum()

    return histogram, (audio,)


class StreamingConv(nn.Module):
    """A causal convolution that keeps the end of the chunk before."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 5)
        self.register_buffer("context", torch.zeros(1, channels, 4))


class RebindingConv(StreamingConv):
    def forward(self, chunk):
        padded = torch.cat([self.context, chunk], dim=-1)  # guilty: the context at capture
        self.context = padded[..., -4:].clone()  # guilty: the graph keeps reading the old buffer
        return self.conv(padded)


def streaming_conv_rebinds_its_context(device):
    model = RebindingConv(4).to(device).eval().requires_grad_(False)
    return model, (torch.randn(1, 4, 16, device=device),)


class CopyingConv(StreamingConv):
    def forward(self, chunk):
        padded = torch.cat([self.context, chunk], dim=-1)
        self.context.copy_(padded[..., -4:])
        return self.conv(padded)


def streaming_conv_copies_its_context(device):
    model = CopyingConv(4).to(device).eval().requires_grad_(False)
    return model, (torch.randn(1, 4, 16, device=device),)


def multi_resolution_stft_loss(device):
    windows = {size: torch.hann_window(size, device=device) for size in (32, 64)}
    predicted = torch.randn(2, 256, device=device, requires_grad=True)
    target = torch.randn(2, 256, device=device)

    def loss(predicted, target):
        total = 0.0
        for size, window in windows.items():
            mine, wanted = (
                torch.stft(wave, size, size // 4, window=window, return_complex=True).abs()
                for wave in (predicted, target)
            )
            total = total + functional.l1_loss((mine + 1e-5).log(), (wanted + 1e-5).log())
            total = total + torch.linalg.norm(wanted - mine) / torch.linalg.norm(wanted)
        return total / len(windows)

    return loss, (predicted, target)

"""Speech, images and diffusion: losses, augmentation, samplers."""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def speech_loss_with_device_lengths(device):
    encoder = nn.Linear(5, 7).to(device)

    def f(features, targets, feature_lengths, target_lengths):
        log_probs = encoder(features).log_softmax(-1)
        # With int64 lengths the native ctc_loss copies them to the CPU: refused.
        return functional.ctc_loss(
            log_probs, targets, feature_lengths, target_lengths
        )  # guilty: reads lengths

    lengths = torch.full((2,), 9, dtype=torch.long, device=device)
    targets = torch.randint(1, 7, (2, 4), device=device)
    return f, (torch.randn(9, 2, 5, device=device), targets, lengths, lengths // 3)


def frames_repeated_by_rank(device):
    base = torch.tensor([1, 2, 3, 2], device=device)

    def f(phonemes, scores):
        durations = base[scores.argsort()]
        # The durations are a permutation of the same numbers: always 8 frames, and output_size
        # saves reading the sum.
        return torch.repeat_interleave(phonemes, durations, dim=0, output_size=8)

    return f, (torch.randn(4, 6, device=device), torch.randn(4, device=device))


def bands_masked_on_the_device(device):
    def f(spectrogram):
        batch, bands, _ = spectrogram.shape
        width = torch.rand(batch, 1, device=spectrogram.device) * 4
        start = torch.rand(batch, 1, device=spectrogram.device) * (bands - width)
        at = torch.arange(bands, device=spectrogram.device)
        hidden = (at >= start) & (at < start + width)
        return spectrogram.masked_fill(hidden[:, :, None], 0.0)

    return f, (torch.randn(2, 12, 9, device=device),)


def magnitudes_with_a_window_per_call(device):
    def f(audio):
        window = torch.hann_window(16, device=audio.device)
        spectrum = torch.stft(audio, 16, hop_length=8, window=window, return_complex=True)
        frequencies = torch.fft.rfftfreq(16, 1 / 8000, device=audio.device)
        power = spectrum.abs().square()
        centroid = (power * frequencies[:, None]).sum(1) / power.sum(1).clamp(min=1e-6)
        return power.clamp(min=1e-8).log(), centroid

    return f, (torch.randn(2, 64, device=device),)


def mixup_drawn_on_the_host(device):
    weights = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4))

    def f(images, labels):
        # Drawn by the CPU's generator: one number for all replays. Another call of eager mixes
        # with another weight.
        share = weights.sample().item()  # guilty: drawn on the host, frozen in the graph
        mixed = share * images + (1 - share) * images.flip(0)  # guilty: the frozen share
        return mixed, share * labels + (1 - share) * labels.flip(0)  # guilty: the frozen share

    return f, (torch.randn(4, 3, 5, 5, device=device), torch.rand(4, 3, device=device))


def rotated_by_a_device_angle(device):
    def f(images):
        angle = (torch.rand(images.shape[0], device=images.device) - 0.5) * math.pi
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        theta = torch.stack(
            [torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1
        )
        grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)

    return f, (torch.randn(3, 2, 6, 6, device=device),)


def colors_counted_in_a_fixed_range(device):
    # With min < max histc reads nothing; without a range it would read the minimum and maximum.
    def f(images):
        histogram = torch.histc(images, bins=8, min=0.0, max=1.0)
        cdf = histogram.cumsum(0) / images.numel()
        return cdf[(images * 7).long()]

    return f, (torch.rand(2, 6, 6, device=device),)


def anchors_of_a_grid(device):
    # cartesian_prod is meshgrid and stack: its size follows from the shapes.
    def f(features, deltas):
        ys = torch.arange(4, device=features.device) + 0.5
        centers = torch.cartesian_prod(ys, ys)
        sizes = centers.new_full((16, 2), 0.25)
        scale = torch.scalar_tensor(8.0, device=features.device)
        boxes = (
            torch.cat([centers + deltas[:, :2] * sizes, sizes * deltas[:, 2:].exp()], -1) * scale
        )
        return boxes, functional.adaptive_max_pool2d(features, 1)

    return f, (torch.randn(1, 3, 4, 4, device=device), torch.randn(16, 4, device=device))


def sigmas_between_device_scalars(device):
    denoise = nn.Linear(6, 6).to(device)

    def f(x, sigma_max):
        # linspace takes numbers: 0-dim tensors are read with item().
        sigmas = torch.linspace(
            sigma_max, 0.02 * sigma_max, 4, device=x.device
        )  # guilty: endpoints are read
        for sigma, following in pairwise(sigmas):
            x = x + (x - denoise(x)).detach() / sigma * (following - sigma)
        return x

    return f, (torch.randn(3, 6, device=device), torch.rand((), device=device) + 1)


def samples_clipped_at_a_quantile(device):
    denoise = nn.Linear(12, 12).to(device)

    def f(noisy):
        guess = denoise(noisy).detach()
        # On a GPU quantile() does not check q, which on a CPU it reads.
        limit = torch.quantile(guess.abs(), 0.9, dim=-1, keepdim=True).clamp(min=1.0)
        return guess.clamp(-limit, limit) / limit

    return f, (torch.randn(3, 12, device=device),)


class Sampler:
    """DDIM with numbers of the host, the same in every call."""

    def __init__(self, device):
        self.net = nn.Linear(7, 6).to(device)
        self.alphas = [math.cos(0.5 * math.pi * t / 5) ** 2 for t in range(5)]

    @torch.no_grad()
    def __call__(self, x):
        steps = iter(range(4, 0, -1))
        for t in steps:
            alpha, following = self.alphas[t], self.alphas[t - 1]
            when = x.new_full((x.shape[0], 1), t / 5)
            noise = self.net(torch.cat([x, when], -1))
            clean = (x - math.sqrt(1 - alpha) * noise) / math.sqrt(alpha)
            x = math.sqrt(following) * clean + math.sqrt(1 - following) * noise
        return x


def denoised_in_a_loop(device):
    return Sampler(device), (torch.randn(3, 6, device=device),)


class ActNorm(nn.Module):
    """Of a normalizing flow: initialized by the first batch, says a buffer."""

    def __init__(self, channels):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, channels))
        self.scale = nn.Parameter(torch.ones(1, channels))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x):
        # The flag lives on the device; it is read in each call, also long after the first.
        if self.initialized.item() == 0:  # guilty: a flag of the device is read on the host
            with torch.no_grad():
                self.loc.copy_(-x.mean(0, keepdim=True))
                self.scale.copy_(1 / (x.std(0, keepdim=True) + 1e-6))
                self.initialized.fill_(1)
        return self.scale * (x + self.loc), self.scale.abs().log().sum()


def flow_initialized_by_data(device):
    return ActNorm(5).to(device), (torch.randn(8, 5, device=device),)


class VectorQuantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(8, 4))
        self.register_buffer("sizes", torch.ones(8))
        self.register_buffer("sums", self.codes.clone())

    @torch.no_grad()
    def forward(self, x):
        chosen = torch.cdist(x, self.codes).argmin(-1)
        picked = functional.one_hot(chosen, 8).to(x.dtype)
        self.sizes.mul_(0.9).add_(picked.sum(0), alpha=0.1)
        self.sums.mul_(0.9).add_(picked.t() @ x, alpha=0.1)
        dead = (self.sizes < 0.05)[:, None]
        self.codes.copy_(torch.where(dead, x[:8], self.sums / self.sizes.clamp(min=1e-5)[:, None]))
        return self.codes[chosen]


def codebook_moved_in_place(device):
    # Dead codes are replaced by where(), not by a branch.
    return VectorQuantizer().to(device), (torch.randn(10, 4, device=device),)


def normalized_over_all_batches(device):
    # momentum=None: the factor is 1 / float(num_batches_tracked), a tensor of the device.
    norm = nn.BatchNorm1d(6, momentum=None).to(device)  # guilty: reads num_batches_tracked
    return lambda x: norm(x), (torch.randn(8, 6, device=device),)  # guilty: the call that reads it


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 1))

    def forward(self, x):
        return self.head(functional.leaky_relu(self.body(x), 0.2))


def discriminator_with_power_iteration(device):
    # The vectors of the power iteration are buffers, updated in place in each forward.
    return Discriminator().to(device).train(), (torch.randn(4, 6, device=device),)

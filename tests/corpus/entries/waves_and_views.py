"""Audio, video, pictures and graphs."""

import torch
from torch import nn
from torch.nn import functional


class Enhancer(nn.Module):
    def __init__(self, n_fft=64, hop=16):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.mask = nn.GRU(n_fft // 2 + 1, 33, batch_first=True)

    @torch.no_grad()
    def forward(self, wave):
        spectrum = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        gain, _ = self.mask(spectrum.abs().mT)
        return torch.istft(  # guilty: checks the window on the host
            spectrum * gain.mT.sigmoid(),
            self.n_fft,
            self.hop,
            window=self.window,
            length=wave.shape[-1],
        )


def speech_is_enhanced(device):
    torch.manual_seed(0)
    return Enhancer().to(device), (torch.randn(2, 512, device=device),)


class SpecAugment(nn.Module):
    def __init__(self, bands=40, widest=10):
        super().__init__()
        self.widest = widest
        self.encoder = nn.Linear(bands, 8)

    def forward(self, mel):
        width = int(torch.randint(1, self.widest, (1,)))  # guilty: drawn on the host
        start = int(torch.randint(0, mel.shape[-1] - width, (1,)))  # guilty: drawn on the host
        mel = mel.clone()
        mel[..., start : start + width] = 0.0  # guilty: the bands of the capture
        return self.encoder(mel).mean(1)


def bands_are_masked_by_the_host(device):
    torch.manual_seed(0)
    return SpecAugment().to(device), (torch.rand(4, 12, 40, device=device),)


def bands_are_masked_on_the_device(device):
    torch.manual_seed(0)
    encoder = nn.Linear(40, 8).to(device)

    def forward(mel):
        b, _, f = mel.shape
        width = torch.randint(1, 10, (b, 1, 1), device=mel.device)
        start = (torch.rand(b, 1, 1, device=mel.device) * (f - width)).long()
        band = torch.arange(f, device=mel.device)
        mel = mel.masked_fill((band >= start) & (band < start + width), 0.0)
        return encoder(mel).mean(1)

    return forward, (torch.rand(4, 12, 40, device=device),)


class Readout(nn.Module):
    """Sums the atoms of each molecule."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.out = nn.Linear(width, 1)

    def forward(self, numbers, molecule):
        atoms = self.embed(numbers)
        count = int(molecule.max()) + 1  # guilty: reads how many there are
        total = atoms.new_zeros(count, atoms.shape[1]).index_add(0, molecule, atoms)
        return self.out(total).squeeze(-1)


def molecules_are_summed(device):
    torch.manual_seed(0)
    molecule = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2], device=device)
    return Readout().to(device), (torch.randint(10, (9,), device=device), molecule)


class FrameDenoiser(nn.Module):
    """Blends each frame with what came out before it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 3, 3, padding=1)
        self.previous = None

    @torch.no_grad()
    def forward(self, frame):
        if self.previous is None:
            self.previous = torch.zeros_like(frame)
        out = frame + 0.1 * self.conv(
            torch.cat([frame, self.previous], 1)
        )  # guilty: of the capture
        self.previous = out  # guilty: by name
        return out.clamp(-3, 3)


def frames_follow_each_other(device):
    torch.manual_seed(0)
    return FrameDenoiser().to(device), (torch.randn(1, 3, 8, 8, device=device),)


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(32, 64)):
        super().__init__()
        self.sizes = sizes
        for n in sizes:
            self.register_buffer(f"window{n}", torch.hann_window(n), persistent=False)

    def forward(self, guess, truth):
        total = guess.new_zeros(())
        for n in self.sizes:
            window = getattr(self, f"window{n}")
            a, b = (
                torch.stft(w, n, n // 4, window=window, return_complex=True).abs().clamp(min=1e-5)
                for w in (guess, truth)
            )
            total = total + torch.linalg.vector_norm(b - a) / torch.linalg.vector_norm(b)
            total = total + functional.l1_loss(a.log(), b.log())
        return total / len(self.sizes)


def loss_at_several_resolutions(device):
    torch.manual_seed(0)
    guess = torch.randn(2, 256, device=device, requires_grad=True)
    return SpectralLoss().to(device), (guess, torch.randn(2, 256, device=device))


class Attend(nn.Module):
    """GAT with a number of nodes that is known."""

    def __init__(self, width=8):
        super().__init__()
        self.project = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(2 * width, 1)

    def forward(self, x, edges):
        source, target = edges
        h = self.project(x)
        e = functional.leaky_relu(self.score(torch.cat([h[source], h[target]], -1))).squeeze(-1)
        top = e.new_full((len(x),), -torch.inf).scatter_reduce(0, target, e.detach(), "amax")
        weight = (e - top[target]).exp()
        norm = torch.zeros_like(top).index_add(0, target, weight).clamp(min=1e-9)
        return torch.zeros_like(h).index_add(
            0, target, h[source] * (weight / norm[target])[:, None]
        )


def graph_attention(device):
    torch.manual_seed(0)
    x = torch.randn(7, 8, device=device, requires_grad=True)
    return Attend().to(device), (x, torch.randint(7, (2, 20), device=device))


class Sampler:
    """DDIM whose step lives on the device."""

    def __init__(self, device, steps=8):
        self.net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8)).to(device)
        self.alphas = torch.cos(torch.linspace(0.05, 1.5, steps + 1, device=device)).square()
        self.x = torch.randn(4, 8, device=device)
        self.step_index = torch.full((1,), steps, dtype=torch.long, device=device)

    @torch.no_grad()
    def step(self):
        now = self.alphas[self.step_index]
        then = self.alphas[(self.step_index - 1).clamp(min=0)]
        time = self.step_index.float().expand(len(self.x), 1)
        eps = self.net(torch.cat([self.x, time], 1))
        clean = ((self.x - (1 - now).sqrt() * eps) / now.sqrt()).clamp(-4, 4)
        self.x.copy_(then.sqrt() * clean + (1 - then).sqrt() * eps)
        self.step_index.sub_(1).clamp_(min=1)
        return self.x.square().mean()


def denoising_counts_on_the_device(device):
    torch.manual_seed(0)
    return Sampler(device).step


def flow_warps_and_masks(device):
    """Occlusion by a forward and backward check."""
    torch.manual_seed(0)
    ys, xs = torch.meshgrid(
        torch.linspace(-1, 1, 8, device=device),
        torch.linspace(-1, 1, 8, device=device),
        indexing="ij",
    )
    base = torch.stack([xs, ys], -1)

    def warp(image, flow):
        grid = base + flow.permute(0, 2, 3, 1)
        return functional.grid_sample(image, grid, align_corners=True, padding_mode="border")

    def loss(first, second, forward, backward):
        visible = (forward + warp(backward, forward)).square().sum(1, keepdim=True) < 0.5
        error = (first - warp(second, forward)).abs() * visible
        return error.sum() / visible.sum().clamp(min=1)

    pictures = [torch.rand(2, 3, 8, 8, device=device) for _ in range(2)]
    flows = [torch.randn(2, 2, 8, 8, device=device) * 0.1 for _ in range(2)]
    flows[0].requires_grad_()
    return loss, (*pictures, *flows)

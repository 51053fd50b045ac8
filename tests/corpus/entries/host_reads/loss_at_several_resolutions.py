import torch
from torch import nn
from torch.nn import functional


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

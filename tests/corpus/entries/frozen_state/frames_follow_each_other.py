import torch
from torch import nn


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
        )  # <- metadata-address-changed
        self.previous = out  # <- metadata-address-changed
        return out.clamp(-3, 3)


def frames_follow_each_other(device):
    torch.manual_seed(0)
    return FrameDenoiser().to(device), (torch.randn(1, 3, 8, 8, device=device),)

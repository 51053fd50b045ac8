import torch
from torch import nn


class StreamingConv(nn.Module):
    """A causal convolution that keeps the end of the chunk before."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 5)
        self.register_buffer("context", torch.zeros(1, channels, 4))


class CopyingConv(StreamingConv):
    def forward(self, chunk):
        padded = torch.cat([self.context, chunk], dim=-1)
        self.context.copy_(padded[..., -4:])
        return self.conv(padded)


def streaming_conv_copies_its_context(device):
    model = CopyingConv(4).to(device).eval().requires_grad_(False)
    return model, (torch.randn(1, 4, 16, device=device),)

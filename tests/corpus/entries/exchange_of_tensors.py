"""Tensors that are exchanged with other libraries, and constants of NumPy."""

import numpy as np
import torch
import torch.utils.dlpack
from torch import nn


class Bridge(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x):
        y = torch.from_dlpack(self.fc(x))
        y.clamp_(min=0)
        return y * 2


def dlpack_round_trip(device):
    torch.manual_seed(0)
    return Bridge().to(device), (torch.randn(3, 4, device=device),)


def dlpack_capsule(device):
    def forward(x):
        y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2))
        return y + 1

    return forward, (torch.randn(3, device=device),)


def current_stream_by_its_handle(device):
    def forward(x):
        # ExternalStream(0) is not the default stream, but one of PyTorch's pool.
        handle = torch.cuda.current_stream().cuda_stream
        with torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else None):
            return x + 1

    return forward, (torch.randn(3, device=device),)


class Stft(nn.Module):
    def __init__(self, n=16, hop=8):
        super().__init__()
        self.n, self.hop = n, hop
        self.register_buffer("window", torch.from_numpy(np.hanning(n).astype(np.float32)))

    def forward(self, x):
        frames = x.unfold(-1, self.n, self.hop) * self.window
        power = torch.fft.rfft(frames).abs().square()
        count = int(np.prod(power.shape[1:]))
        db = 10 / float(np.log(10.0)) * power.clamp(min=1e-10).log()
        return db * np.float64(0.5) + np.pi / count


def constants_of_numpy(device):
    return Stft().to(device), (torch.randn(2, 64, device=device),)


class AnchorHead(nn.Module):
    sizes = ((10, 13), (16, 30), (33, 23))

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 1)

    def forward(self, x):
        b, _, h, w = x.shape
        raw = self.conv(x).view(b, 3, 2, h, w)
        anchors = raw.new_tensor(self.sizes).view(
            1, 3, 2, 1, 1
        )  # guilty: a device tensor is made of Python numbers
        return raw.exp() * anchors


def anchors_from_a_list(device):
    return AnchorHead().to(device), (torch.randn(1, 4, 5, 5, device=device),)

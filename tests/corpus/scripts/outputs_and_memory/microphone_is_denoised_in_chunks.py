"""A live denoiser: windows overlap by half, the graph keeps the halves that are still open."""

import torch
from torch import nn

FRAME, HOP = 128, 64


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        bins = FRAME // 2 + 1
        self.gru = nn.GRUCell(bins, width)
        self.mask = nn.Linear(width, bins)
        self.register_buffer("window", torch.hann_window(FRAME).sqrt())
        self.register_buffer("recent", torch.zeros(1, FRAME))
        self.register_buffer("overlap", torch.zeros(1, FRAME))
        self.register_buffer("hidden", torch.zeros(1, width))

    def forward(self, hop):
        self.recent.copy_(torch.cat([self.recent[:, HOP:], hop], 1))
        spectrum = torch.fft.rfft(self.recent * self.window)
        hidden = self.gru(spectrum.abs().log1p(), self.hidden)
        self.hidden.copy_(hidden)
        clean = torch.fft.irfft(spectrum * self.mask(hidden).sigmoid(), n=FRAME) * self.window
        self.overlap.add_(clean)
        ready = self.overlap[:, :HOP].clone()
        self.overlap.copy_(torch.cat([self.overlap[:, HOP:], torch.zeros_like(hop)], 1))
        return ready

    def reset(self):
        for state in (self.recent, self.overlap, self.hidden):
            state.zero_()


class Stream:
    def __init__(self, model):
        self.model = model
        self.hop = torch.zeros(1, HOP, device="cuda")
        with torch.inference_mode():
            model(self.hop)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.ready = model(self.hop)

    def denoise(self, recording):
        self.model.reset()
        pieces = []
        for hop in recording.split(HOP, 1):
            self.hop.zero_()
            self.hop[:, : hop.shape[1]].copy_(hop)
            self.graph.replay()
            pieces.append(self.ready.cpu())
        return torch.cat(pieces, 1)[:, : recording.shape[1]]


torch.manual_seed(0)
stream = Stream(Denoiser().cuda().eval())
for length in (640, 500, 130):
    cleaned = stream.denoise(torch.randn(1, length))
    print(length, tuple(cleaned.shape), cleaned.std().item())

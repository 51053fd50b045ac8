"""Video: frames that hardly differ from the last keyframe are predicted by a small network."""

import torch
from torch import nn


class VideoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.full = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1)
        )
        self.delta = nn.Conv2d(3, 8, 1)
        self.register_buffer("keyframe", torch.zeros(1, 3, 24, 24))
        self.register_buffer("latent", torch.zeros(1, 8, 24, 24))

    def forward(self, frame):
        motion = (frame - self.keyframe).abs().mean()
        if motion > 0.1:  # guilty: the host asks how much has moved
            self.keyframe.copy_(frame)
            self.latent.copy_(self.full(frame))
            return self.latent.clone()
        return self.latent + self.delta(frame - self.keyframe)


torch.manual_seed(0)
encoder = VideoEncoder().cuda().eval()
frame = torch.zeros(1, 3, 24, 24, device="cuda")
with torch.inference_mode():
    for _ in range(2):
        encoder(frame)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        latent = encoder(frame)
    scene = torch.rand(1, 3, 24, 24)
    for number in range(8):
        if number % 4 == 0:
            scene = torch.rand(1, 3, 24, 24)
        frame.copy_(scene + 0.01 * torch.randn(1, 3, 24, 24))
        graph.replay()
        print(number, latent.mean().item())

"""The hottest places of heat maps, refined below a pixel, are fetched after each replay."""

import torch
from torch import nn


class Pose(nn.Module):
    def __init__(self, joints=5):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, joints, 1))

    def forward(self, picture):
        heat = self.body(picture)
        _b, _j, h, w = heat.shape
        flat = heat.flatten(2)
        confidence, place = flat.max(-1)
        left = flat.gather(2, (place - 1).clamp(min=0)[..., None]).squeeze(-1)
        right = flat.gather(2, (place + 1).clamp(max=h * w - 1)[..., None]).squeeze(-1)
        x = place % w + 0.25 * torch.sign(right - left)
        return torch.stack([x, torch.div(place, w, rounding_mode="floor")], -1), confidence


torch.manual_seed(0)
pose = Pose().cuda().eval().requires_grad_(False)
picture = torch.zeros(1, 3, 16, 16, device="cuda")
pose(picture)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    joints, confidence = pose(picture)
track = []
for _ in range(3):
    picture.copy_(torch.rand(1, 3, 16, 16))
    graph.replay()
    track.append(joints.cpu())
    print(confidence.mean().item())
print(torch.stack(track).std(0).mean())

import torch
import torch.utils.dlpack
from torch import nn


class AnchorHead(nn.Module):
    sizes = ((10, 13), (16, 30), (33, 23))

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 1)

    def forward(self, x):
        b, _, h, w = x.shape
        raw = self.conv(x).view(b, 3, 2, h, w)
        anchors = raw.new_tensor(self.sizes).view(1, 3, 2, 1, 1)  # <- h2d-tensor-from-python
        return raw.exp() * anchors


def anchors_from_a_list(device):
    return AnchorHead().to(device), (torch.randn(1, 4, 5, 5, device=device),)

import torch
from torch import nn


class UnpackedOnce(nn.Module):
    """Unpacks its weight in the first call and forgets the packed one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.randint(-8, 8, (4, 8), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(4, 1))

    def post_load(self):
        self.register_buffer("weight", self.packed * self.scale)
        del self.packed

    @torch.inference_mode()
    def forward(self, x):
        if hasattr(self, "packed"):
            self.post_load()
        return x @ self.weight.T


def packed_weight_is_deleted_after_use(device):
    torch.manual_seed(0)
    return UnpackedOnce().to(device), (torch.randn(2, 8, device=device),)

import torch
import torch.utils.dlpack


def dlpack_capsule(device):
    def forward(x):
        y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2))
        return y + 1

    return forward, (torch.randn(3, device=device),)

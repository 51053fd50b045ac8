import torch


def every_other_joint(device):
    limits = torch.ones(3, device=device)

    def clamp(joints):
        legs = joints[:, range(0, 6, 2)]  # <- h2d-index-with-list-or-cpu-tensor
        return legs.clamp(-limits, limits).sum(1)

    return clamp, (torch.randn(16, 6, device=device),)

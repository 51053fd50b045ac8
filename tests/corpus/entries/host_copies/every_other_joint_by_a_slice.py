import torch


def every_other_joint_by_a_slice(device):
    # A view.
    limits = torch.ones(3, device=device)

    def clamp(joints):
        left, right = joints[:, slice(0, 6, 2)], joints[..., 1::2]
        x, y, z = (left - right).clamp(-limits, limits).unbind(1)
        return torch.stack((x + y, z))

    return clamp, (torch.randn(16, 6, device=device),)

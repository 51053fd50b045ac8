import torch


def mixup_with_a_device_permutation(device):
    def mix(images):
        order = torch.rand(images.shape[0], device=device).argsort()
        weight = torch.rand(images.shape[0], 1, 1, 1, device=device).mul_(0.5).add_(0.5)
        return weight * images + (1 - weight) * images[order]

    return mix, (torch.rand(4, 3, 8, 8, device=device),)

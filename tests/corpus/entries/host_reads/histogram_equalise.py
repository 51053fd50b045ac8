import torch


def histogram_equalise(device):
    def equalise(image):
        counts = torch.histc(image, bins=16, min=0, max=1)
        cdf = counts.cumsum(0) / image.numel()
        return cdf[(image * 15).long()]

    return equalise, (torch.rand(32, 32, device=device),)

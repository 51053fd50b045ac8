import torch


def normalized_by_numbers(device):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def f(image):
        planes = zip(image.unbind(1), mean, std, strict=True)
        return torch.stack([(plane - m) / s for plane, m, s in planes], 1)

    return f, (torch.rand(2, 3, 4, 4, device=device),)

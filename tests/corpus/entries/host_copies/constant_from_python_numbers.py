import torch


def constant_from_python_numbers(device):
    def normalise(images):
        mean = torch.tensor([0.485, 0.456, 0.406], device=device)  # <- h2d-tensor-from-python
        return images - mean[:, None, None]

    return normalise, (torch.rand(2, 3, 8, 8, device=device),)

import torch


def list_under_a_device_context(device):
    def weigh(x):
        with torch.device(device):
            weights = torch.tensor([1.0, 2.0, 3.0])  # <- h2d-tensor-from-python
        return x * weights

    return weigh, (torch.randn(2, 3, device=device),)

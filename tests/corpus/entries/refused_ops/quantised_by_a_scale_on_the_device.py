import torch


def quantised_by_a_scale_on_the_device(device):
    scale = torch.ones(1, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    def forward(x):
        quantised = torch.quantize_per_tensor(
            x, scale, zero, torch.quint8
        )  # <- hidden-sync-in-stock-module
        return quantised.dequantize()

    return forward, (torch.randn(4, 4, device=device),)

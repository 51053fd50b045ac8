import torch


def chooses_a_tensor_of_the_host(device):
    zero = torch.tensor(0.0)

    def forward(x):
        return torch.where(x > 0, x, zero)  # <- h2d-pageable-copy

    return forward, (torch.randn(4, 6, device=device),)

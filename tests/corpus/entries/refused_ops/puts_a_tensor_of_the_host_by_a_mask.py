import torch


def puts_a_tensor_of_the_host_by_a_mask(device):
    padding = torch.tensor(-1.0)

    def forward(x):
        return x.index_put((x > 0,), padding)

    return forward, (torch.randn(4, 6, device=device),)

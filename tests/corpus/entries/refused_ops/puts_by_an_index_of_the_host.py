import torch


def puts_by_an_index_of_the_host(device):
    row = torch.tensor(1)

    def forward(x):
        return x.index_put((row,), x[0])  # <- h2d-pageable-copy

    return forward, (torch.randn(4, 6, device=device),)

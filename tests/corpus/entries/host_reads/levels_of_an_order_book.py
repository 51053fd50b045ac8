import torch


def levels_of_an_order_book(device):
    # Every result has a fixed size, `nonzero_static` too.
    edges = torch.linspace(0, 1, 17, device=device)

    def book(prices, sizes):
        level = torch.searchsorted(edges, prices).clamp(max=16)
        depth = torch.zeros(17, device=device).scatter_add_(0, level, sizes)
        filled = torch.nonzero_static(depth > 0.5, size=4, fill_value=16)[:, 0]
        return depth.cumsum(0), depth[filled]

    return book, (torch.rand(32, device=device), torch.rand(32, device=device))

import torch


def puts_values_of_the_device(device):
    def forward(x, rows):
        y = x.index_put((rows,), x.new_zeros(()))
        y[rows] = x.mean()
        return y.index_fill(0, rows, 2.0).scatter(0, rows[:, None].expand(2, 4), 3.0)

    return forward, (torch.randn(6, 4, device=device), torch.tensor([0, 3], device=device))

import torch


def fills_columns_of_masked_rows(device):
    columns = torch.tensor([0], device=device)

    def forward(x, mask):
        x = x.clone()
        x[mask, columns] = 0.0  # <- h2d-index-with-list-or-cpu-tensor
        return x

    return forward, (torch.randn(4, 6, device=device), torch.rand(4, device=device) > 0.5)

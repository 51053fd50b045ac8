import torch


def sparse_matrix_of_unknown_size(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)

    def forward(values):
        return torch.sparse_coo_tensor(indices, values).to_dense()  # <- sync-item

    return forward, (torch.randn(4, device=device),)

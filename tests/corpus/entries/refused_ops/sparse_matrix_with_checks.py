import torch


def sparse_matrix_with_checks(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)

    def forward(values):
        matrix = torch.sparse_coo_tensor(  # <- sync-item
            indices, values, (4, 4), check_invariants=True
        )
        return matrix.to_dense()

    return forward, (torch.randn(4, device=device),)

import torch


def softmax_of_a_sparse_matrix(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)
    scores = torch.sparse_coo_tensor(indices, torch.ones(4, device=device), (4, 4)).coalesce()

    def forward(x):
        return x + torch.sparse.softmax(scores, 1).to_dense()  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 4, device=device),)

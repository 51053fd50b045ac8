import torch


def multiplies_a_coalesced_matrix(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)
    adjacency = torch.sparse_coo_tensor(indices, torch.ones(4, device=device), (4, 4)).coalesce()

    def forward(x):
        return torch.sparse.mm(adjacency, x)

    return forward, (torch.randn(4, 6, device=device),)

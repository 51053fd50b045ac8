import torch


def multiplies_an_uncoalesced_matrix(device):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 2, 1]], device=device)

    def forward(x, values):
        adjacency = torch.sparse_coo_tensor(indices, values, (4, 4), check_invariants=False)
        return torch.sparse.mm(adjacency, x)  # <- sync-dynamic-shape-op

    return forward, (torch.randn(4, 6, device=device), torch.randn(4, device=device))

import torch


def coalesces_a_sparse_tensor(device):
    indices = torch.tensor([[0, 1, 1]], device=device)

    def forward(x):
        return (
            torch.sparse_coo_tensor(indices, x, (4,)).coalesce().values()
        )  # <- sync-dynamic-shape-op

    return forward, (torch.randn(3, device=device),)

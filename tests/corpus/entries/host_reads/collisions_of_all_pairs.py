import torch


def collisions_of_all_pairs(device):
    index = torch.arange(6, device=device)

    def collide(points):
        pairs = torch.cartesian_prod(index, index)
        pairs = pairs[pairs[:, 0] < pairs[:, 1]]  # <- sync-dynamic-shape-op
        return (points[pairs[:, 0]] - points[pairs[:, 1]]).norm(dim=1).clamp(max=1)

    return collide, (torch.randn(6, 3, device=device),)

import torch
from torch.nn import functional


def anchors_of_a_grid(device):
    # cartesian_prod is meshgrid and stack: its size follows from the shapes.
    def f(features, deltas):
        ys = torch.arange(4, device=features.device) + 0.5
        centers = torch.cartesian_prod(ys, ys)
        sizes = centers.new_full((16, 2), 0.25)
        scale = torch.scalar_tensor(8.0, device=features.device)
        boxes = (
            torch.cat([centers + deltas[:, :2] * sizes, sizes * deltas[:, 2:].exp()], -1) * scale
        )
        return boxes, functional.adaptive_max_pool2d(features, 1)

    return f, (torch.randn(1, 3, 4, 4, device=device), torch.randn(16, 4, device=device))

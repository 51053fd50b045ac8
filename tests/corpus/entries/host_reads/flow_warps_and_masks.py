import torch
from torch.nn import functional


def flow_warps_and_masks(device):
    """Occlusion by a forward and backward check."""
    torch.manual_seed(0)
    ys, xs = torch.meshgrid(
        torch.linspace(-1, 1, 8, device=device),
        torch.linspace(-1, 1, 8, device=device),
        indexing="ij",
    )
    base = torch.stack([xs, ys], -1)

    def warp(image, flow):
        grid = base + flow.permute(0, 2, 3, 1)
        return functional.grid_sample(image, grid, align_corners=True, padding_mode="border")

    def loss(first, second, forward, backward):
        visible = (forward + warp(backward, forward)).square().sum(1, keepdim=True) < 0.5
        error = (first - warp(second, forward)).abs() * visible
        return error.sum() / visible.sum().clamp(min=1)

    pictures = [torch.rand(2, 3, 8, 8, device=device) for _ in range(2)]
    flows = [torch.randn(2, 2, 8, 8, device=device) * 0.1 for _ in range(2)]
    flows[0].requires_grad_()
    return loss, (*pictures, *flows)

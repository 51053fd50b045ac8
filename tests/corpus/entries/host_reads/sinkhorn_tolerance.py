import torch


def sinkhorn_tolerance(device):
    def sinkhorn(c):
        f, g = c.new_zeros(c.shape[0]), c.new_zeros(c.shape[1])
        error = float("inf")
        while error > 1e-1:
            old = f
            f = -torch.logsumexp(g - c, 1)
            g = -torch.logsumexp(f[:, None] - c, 0)
            error = (f - old).abs().max()
            error = error.item()  # <- sync-item
        return (f[:, None] + g - c).exp()

    return sinkhorn, (torch.rand(4, 4, device=device),)

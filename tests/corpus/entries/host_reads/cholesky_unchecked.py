import torch


def cholesky_unchecked(device):
    def whiten(x):
        covariance = x.T @ x + torch.eye(4, device=x.device)
        return torch.linalg.cholesky_ex(covariance).L

    return whiten, (torch.randn(8, 4, device=device),)

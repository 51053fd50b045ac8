"""Bayesian optimization: the posterior of a Gaussian process and its upper bound are captured."""

import torch


def kernel(a, b, length=0.5):
    return torch.exp(-torch.cdist(a, b).square() / (2 * length**2))


class Surrogate:
    def __init__(self, slots, dim, candidates):
        self.x = torch.rand(slots, dim, device="cuda")
        self.y = torch.zeros(slots, 1, device="cuda")
        self.noise = torch.full((slots,), 1e3, device="cuda")
        self.candidates = torch.rand(candidates, dim, device="cuda")

    def upper_bound(self):
        covariance = kernel(self.x, self.x) + torch.diag(self.noise)
        factor = torch.linalg.cholesky(covariance)  # guilty: the host checks the factorization
        cross = kernel(self.x, self.candidates)
        mean = cross.T @ torch.cholesky_solve(self.y, factor)
        half = torch.linalg.solve_triangular(factor, cross, upper=False)
        variance = (1 - half.square().sum(0)).clamp_min(1e-9)
        return mean.squeeze(-1) + 2 * variance.sqrt()


def objective(x):
    return float((-(x - 0.3).square()).sum())


torch.manual_seed(0)
surrogate = Surrogate(32, 3, 256)
surrogate.upper_bound()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    bound = surrogate.upper_bound()

best = float("-inf")
for trial in range(10):
    surrogate.candidates.uniform_()
    graph.replay()
    point = surrogate.candidates[bound.argmax()].clone()
    value = objective(point.cpu())
    best = max(best, value)
    surrogate.x[trial].copy_(point)
    surrogate.y[trial].fill_(value)
    surrogate.noise[trial].fill_(1e-4)
    print(trial, best)

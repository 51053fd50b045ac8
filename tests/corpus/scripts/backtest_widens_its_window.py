"""A backtest fits on a window that widens; the window is a mask that the graph reads."""

import torch


class Ridge:
    """Weighted least squares by a few steps of conjugate gradients."""

    def __init__(self, features, targets):
        self.features, self.targets = features, targets
        self.weights = torch.zeros(len(features), device="cuda")
        self.penalty = torch.tensor(0.1).cuda()

    def product(self, vector):
        fitted = self.features @ vector
        return self.features.t() @ (self.weights * fitted) + self.penalty * vector

    def fit(self, iterations=6):
        solution = torch.zeros(self.features.shape[1], device="cuda")
        residual = self.features.t() @ (self.weights * self.targets)
        direction, square = residual, residual.dot(residual)
        for _ in range(iterations):
            image = self.product(direction)
            size = square / (direction.dot(image) + 1e-12)
            solution = solution + size * direction
            residual = residual - size * image
            square, before = residual.dot(residual), square
            direction = residual + square / (before + 1e-12) * direction
        return solution


days = 40
prices = torch.randn(days, 5, device="cuda")
returns = prices @ torch.tensor([0.5, -0.2, 0.0, 0.1, 0.3], device="cuda")
model = Ridge(prices, returns)
model.weights[:10] = 1.0
model.fit()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    coefficients = model.fit()

history, errors = [], []
for today in range(10, days):
    model.weights[today - 1] = 1.0
    model.weights.mul_(0.98)
    model.penalty.fill_(1.0 / today)
    graph.replay()
    history.append(coefficients.clone())
    errors.append((prices[today] @ coefficients - returns[today]).item())
print(torch.stack(history).std(0).tolist(), sum(abs(error) for error in errors))

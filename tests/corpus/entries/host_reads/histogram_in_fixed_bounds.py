import torch
from torch import nn


def histogram_in_fixed_bounds(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)).to(device).eval()

    @torch.no_grad()
    def expected_calibration_error(x, y):
        confidence, predicted = net(x).softmax(-1).max(-1)
        right = (predicted == y).float()
        edges = torch.linspace(0, 1, 11, device=x.device)
        bins = torch.bucketize(confidence, edges[1:-1])
        zeros = torch.zeros(10, device=x.device)
        count = torch.histc(confidence, bins=10, min=0.0, max=1.0)
        accuracy = zeros.index_add(0, bins, right)
        certainty = zeros.index_add(0, bins, confidence)
        return (accuracy - certainty).abs().sum() / len(x), count

    return expected_calibration_error, (
        torch.randn(64, 12, device=device),
        torch.randint(5, (64,), device=device),
    )

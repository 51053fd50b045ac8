import torch


def observed_and_fake_quantised(device):
    def flag():
        return torch.ones(1, dtype=torch.long, device=device)

    observe, quantise = flag(), flag()
    low, high = torch.full((1,), -1.0, device=device), torch.full((1,), 1.0, device=device)
    scale = torch.ones(1, device=device)
    zero = torch.zeros(1, dtype=torch.int32, device=device)

    def forward(x):
        return torch.fused_moving_avg_obs_fake_quant(
            x, observe, quantise, low, high, scale, zero, 0.01, -128, 127, -1
        )

    return forward, (torch.randn(4, 4, device=device),)

import torch


def gradients_are_tested_for_nan(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(device)
    x = torch.randn(4, 8, device=device)

    def step():
        with torch.autograd.set_detect_anomaly(True):
            loss = model(x).mean()
            loss.backward()  # <- nan-guard-sync
        return loss.detach()

    return step

import torch
from torch import nn

UPDATES = 0


def kl_is_annealed_by_a_global(device):
    encoder, decoder = nn.Linear(10, 8).to(device), nn.Linear(4, 10).to(device)
    x = torch.randn(6, 10, device=device)
    opt = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)

    def step():
        global UPDATES
        UPDATES += 1  # <- cpu-state-step-counter
        mean, logvar = encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(-1).mean()
        beta = min(1.0, UPDATES / 1000)
        reconstruction = nn.functional.mse_loss(decoder(z), x)
        loss = reconstruction + beta * kl  # <- cpu-state-step-counter
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step

"""The weight of the KL term of a VAE grows in a tensor; the log has the number."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
encoder, decoder = nn.Linear(16, 8).cuda(), nn.Linear(4, 16).cuda()
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)
weights = {name: torch.ones((), device="cuda") for name in ("reconstruction", "kl")}
log = {"kl": 0.0}
x = torch.randn(32, 16, device="cuda")


def step():
    mean, log_var = encoder(x).chunk(2, -1)
    z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
    losses = {
        "reconstruction": functional.mse_loss(decoder(z), x),
        "kl": -0.5 * (1 + log_var - mean.square() - log_var.exp()).mean(),
    }
    loss = sum(weights[name] * value for name, value in losses.items())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for epoch in range(5):
    log["kl"] = min(1.0, epoch / 3)
    weights["kl"].fill_(log["kl"])
    graph.replay()
    print(epoch, log, loss.item())

"""SAC: the policy is penalized by a temperature that is learned."""

import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).cuda().requires_grad_(False)
log_alpha = torch.zeros((), device="cuda", requires_grad=True)
policy = torch.optim.Adam(actor.parameters(), lr=1e-3, capturable=True)
temperature = torch.optim.Adam([log_alpha], lr=1e-3, capturable=True)
state = torch.randn(32, 6, device="cuda")


def step():
    alpha = log_alpha.exp().item()  # guilty: read on the host
    mean, log_std = actor(state).chunk(2, -1)
    noise = torch.randn_like(mean)
    action = torch.tanh(mean + noise * log_std.clamp(-5, 2).exp())
    log_prob = (-0.5 * noise.square() - log_std - (1 - action.square() + 1e-6).log()).sum(-1)
    loss = (alpha * log_prob - critic(torch.cat([state, action], -1)).squeeze(-1)).mean()
    policy.zero_grad(set_to_none=True)
    loss.backward()
    policy.step()
    temperature.zero_grad(set_to_none=True)
    (-log_alpha * (log_prob.detach() - 2.0).mean()).backward()
    temperature.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
graph.replay()
print(loss.item())

"""SAC whose temperature is a device tensor, with a target network that follows slowly."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
target = copy.deepcopy(critic).requires_grad_(False)
log_alpha = torch.zeros((), device="cuda", requires_grad=True)
policy = torch.optim.Adam([*actor.parameters(), log_alpha], lr=1e-3, capturable=True)
values = torch.optim.Adam(critic.parameters(), lr=1e-3, capturable=True)
state, following = (torch.randn(32, 6, device="cuda") for _ in range(2))
action, reward = torch.randn(32, 2, device="cuda"), torch.randn(32, 1, device="cuda")


def act(states):
    mean, log_std = actor(states).chunk(2, -1)
    noise = torch.randn_like(mean)
    log_std = log_std.clamp(-5, 2)
    chosen = torch.tanh(mean + noise * log_std.exp())
    density = -0.5 * noise.square() - log_std - (1 - chosen.square() + 1e-6).log()
    return chosen, density.sum(-1, keepdim=True)


def step():
    with torch.no_grad():
        after, density = act(following)
        value = target(torch.cat([following, after], -1)) - log_alpha.exp() * density
        goal = reward + 0.99 * value
    values.zero_grad(set_to_none=True)
    error = (critic(torch.cat([state, action], -1)) - goal).square().mean()
    error.backward()
    values.step()
    policy.zero_grad(set_to_none=True)
    chosen, density = act(state)
    loss = (log_alpha.exp().detach() * density - critic(torch.cat([state, chosen], -1))).mean()
    loss = loss - log_alpha * (density.detach().mean() - 2.0)
    loss.backward()
    policy.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), 0.005)
    return error.detach(), log_alpha.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    error, shown = step()
for i in range(8):
    for tensor in (state, following):
        tensor.copy_(torch.randn(32, 6))
    reward.copy_(state[:, :1].sin())
    graph.replay()
    if i % 4 == 3:
        print(error.item(), shown.exp().item())

"""A gradient penalty through a graphed callable: the gradient that it gets is a constant, so the
critic trains without the penalty, and nothing raises."""

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
critic = torch.cuda.make_graphed_callables(
    critic, (torch.zeros(2, 4, device="cuda", requires_grad=True),)
)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(2, 4, device="cuda", requires_grad=True)
    score = critic(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)  # <- double-backward
    optimizer.zero_grad()
    loss = score.mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())

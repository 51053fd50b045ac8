"""PPO: the log-probabilities of the old policy are a view of what the graph writes again."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(1)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)).cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
states = torch.zeros(16, 4, device="cuda")
actions = torch.zeros(16, dtype=torch.long, device="cuda")


def log_probs():
    return policy(states).log_softmax(-1).gather(1, actions.unsqueeze(1)).squeeze(1)


with torch.no_grad():
    log_probs()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_logp = log_probs()


def evaluate():
    graph.replay()  # guilty: overwrites what `old` is
    return static_logp.detach()  # guilty: the output itself, which the next replay overwrites


for iteration in range(3):
    states.normal_()
    with torch.no_grad():
        actions.copy_(Categorical(logits=policy(states)).sample())
    advantage = (actions == states.argmax(1) % 3).float() - 0.33
    old = evaluate()
    for epoch in range(3):
        ratio = (log_probs() - old).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        moved = (evaluate() - old).mean()
        print(iteration, epoch, loss.item(), moved.item())

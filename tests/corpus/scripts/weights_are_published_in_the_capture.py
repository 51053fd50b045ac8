"""The learner copies its weights into memory that the actors share, inside the captured step."""

import torch
from torch import nn

torch.manual_seed(14)
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
published = {name: p.detach().cpu().share_memory_() for name, p in policy.named_parameters()}
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3, capturable=True)
states, goals = torch.randn(64, 8, device="cuda"), torch.randn(64, 2, device="cuda")


def publish():
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            published[name].copy_(parameter)  # guilty: the host waits for the copy


def learn():
    optimizer.zero_grad(set_to_none=True)
    loss = (policy(states) - goals).square().mean()
    loss.backward()
    optimizer.step()
    publish()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        learn()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = learn()
for _ in range(10):
    states.normal_()
    graph.replay()
print(loss.item(), published["0.weight"].norm().item())

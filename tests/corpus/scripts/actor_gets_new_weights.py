import torch
from torch import nn

policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
learner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
obs = torch.zeros(64, 8, device="cuda")

with torch.no_grad():
    for _ in range(2):
        policy(obs)
    torch.cuda.synchronize()
    actor = torch.cuda.CUDAGraph()
    with torch.cuda.graph(actor):
        action = policy(obs)

optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
for update in range(3):
    for _ in range(4):
        obs.copy_(torch.randn(64, 8, device="cuda"))
        actor.replay()
        loss = (learner(obs) - action).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = {name: value.clone() for name, value in learner.state_dict().items()}
    policy.load_state_dict(weights, assign=True)  # guilty: other parameters
    print(update, action.norm().item())

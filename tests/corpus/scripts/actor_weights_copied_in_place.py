import torch
from torch import nn

policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
learner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
obs = torch.zeros(64, 8, device="cuda")

with torch.no_grad():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            policy(obs)
    torch.cuda.current_stream().wait_stream(stream)
    actor = torch.cuda.CUDAGraph()
    with torch.cuda.graph(actor):
        action = policy(obs)

optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
for update in range(3):
    for _ in range(4):
        obs.copy_(torch.randn(64, 8, device="cuda"))
        actor.replay()
        loss = (learner(obs) - action.clone()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    policy.load_state_dict(learner.state_dict())
    print(update, action.norm().item())

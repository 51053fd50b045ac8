"""A trainer packs its weights into one buffer; the engine unpacks them into its own, in place."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

learner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
engine = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda().eval()
optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
prompt = torch.zeros(4, 4, device="cuda")
with torch.inference_mode():
    engine(prompt)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = engine(prompt)


def push():
    flat = parameters_to_vector(learner.parameters()).detach()
    sizes = [p.numel() for p in engine.parameters()]
    with torch.no_grad():
        views = [
            part.view_as(p) for part, p in zip(flat.split(sizes), engine.parameters(), strict=True)
        ]
        torch._foreach_copy_(list(engine.parameters()), views)


for round_ in range(3):
    push()
    prompt.normal_()
    graph.replay()
    experience = (prompt.clone(), answer.clone())
    loss = (learner(experience[0]) - experience[1] - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round_, loss.item())

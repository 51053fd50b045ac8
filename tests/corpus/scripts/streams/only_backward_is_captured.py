"""The forward runs eagerly on the default stream, and its backward alone is captured."""

import torch
from torch import nn

torch.manual_seed(7)
encoder = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)).cuda()
head = nn.Linear(24, 5).cuda()
images = torch.randn(16, 24, device="cuda")
labels = torch.randint(0, 5, (16,), device="cuda")
parameters = [*encoder.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)

for _ in range(3):
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(head(encoder(images)), labels).backward()
    optimizer.step()

optimizer.zero_grad(set_to_none=False)
loss = nn.functional.cross_entropy(
    head(encoder(images)), labels
)  # <- accumulate-grad-default-stream
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # <- accumulate-grad-default-stream
    loss.backward(retain_graph=True)  # <- accumulate-grad-default-stream
    optimizer.step()

for _ in range(4):
    optimizer.zero_grad(set_to_none=False)
    graph.replay()
    print(parameters[0].grad.norm().item())

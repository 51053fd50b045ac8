"""The averaged model gets new batch statistics by update_bn; its evaluation was captured before."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3)).cuda()
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

averaged.eval()
inputs = torch.zeros(16, 10, device="cuda")
with torch.no_grad():
    for _ in range(2):
        averaged(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = averaged(inputs)

data = [
    (torch.randn(16, 10, device="cuda"), torch.randint(0, 3, (16,), device="cuda"))
    for _ in range(6)
]
for epoch in range(3):
    for features, labels in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    averaged.update_parameters(model)
    update_bn((features for features, _ in data), averaged)
    averaged.eval()
    correct = 0
    for features, labels in data:
        inputs.copy_(features)
        graph.replay()
        correct += (logits.argmax(-1) == labels).sum().item()
    print(epoch, correct)

"""Test-time adaptation by entropy: for each domain, weights and optimizer start anew."""

import copy

import torch
from torch import nn


def normalization_parameters(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            yield from module.parameters()


def new_optimizer(model):
    return torch.optim.SGD(normalization_parameters(model), lr=0.05, momentum=0.9)


def entropy(logits):
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5)).cuda()
model.requires_grad_(False)
for parameter in normalization_parameters(model):
    parameter.requires_grad_(True)
source = copy.deepcopy(model.state_dict())
optimizer = new_optimizer(model)
batch = torch.zeros(64, 10, device="cuda")


def adapt():
    optimizer.zero_grad(set_to_none=True)
    logits = model(batch)
    entropy(logits).backward()
    optimizer.step()
    return logits.detach().argmax(-1)


batch.normal_()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        adapt()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    predictions = adapt()

for domain in ("noise", "blur", "fog"):
    model.load_state_dict(source)
    optimizer = new_optimizer(model)  # guilty: replays go on with the momentum of the first one
    counts = torch.zeros(5, dtype=torch.int64)
    for _ in range(4):
        batch.copy_(torch.randn(64, 10) + len(domain) / 4)
        graph.replay()
        counts += torch.bincount(predictions.cpu(), minlength=5)
    print(domain, counts.tolist())

"""Self-distillation in generations: the teacher of the graph loads the state of the student."""

import copy

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).cuda()
teacher = copy.deepcopy(student).requires_grad_(False).eval()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(12, 8, device="cuda")
y = torch.randint(4, (12,), device="cuda")
weight = torch.zeros((), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    logits = student(x)
    soft = teacher(x).softmax(-1)
    hard = functional.cross_entropy(logits, y)
    loss = hard + weight * functional.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

history = []
for _generation in range(3):
    for _ in range(4):
        x.copy_(torch.randn(12, 8))
        y.copy_(torch.randint(4, (12,)))
        graph.replay()
        history.append(loss.item())
    teacher.load_state_dict(student.state_dict())
    weight.fill_(0.5)
print(history)

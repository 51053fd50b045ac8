"""Self-distillation in generations: every epoch the teacher is a deep copy of the student."""

import copy

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)


class BornAgain:
    def __init__(self):
        self.student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)
        self.new_generation()

    def new_generation(self):
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)  # guilty: new tensors
        self.teacher.eval()

    def loss(self, x, y):
        logits = self.student(x)
        soft = self.teacher(x).softmax(-1)  # guilty: the teacher of the capture
        hard = functional.cross_entropy(logits, y)
        return hard + functional.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss


trainer = BornAgain()
x = torch.randn(12, 8, device="cuda")
y = torch.randint(4, (12,), device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        trainer.step(x, y)
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = trainer.step(x, y)

for epoch in range(3):
    for _ in range(4):
        x.copy_(torch.randn(12, 8))
        y.copy_(torch.randint(4, (12,)))
        graph.replay()
    print(epoch, loss.item())
    trainer.new_generation()  # guilty: as above

"""Layers that are switched off leave a set; the callable was captured with all of them."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)


class Droppable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.active = {0, 1, 2, 3}

    def forward(self, x):
        for index in sorted(self.active):  # <- control-flow-frozen
            x = x + self.layers[index](x).tanh()  # <- control-flow-frozen
        return x


model = Droppable().cuda()
head = nn.Linear(8, 2).cuda()
sample = torch.randn(4, 8, device="cuda")
graphed = torch.cuda.make_graphed_callables(model, (sample,))
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

for step in range(6):
    if step in (2, 4):
        model.active.discard(step - 1)  # <- control-flow-frozen
    x, y = torch.randn(4, 8, device="cuda"), torch.randint(2, (4,), device="cuda")
    loss = functional.cross_entropy(head(graphed(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())

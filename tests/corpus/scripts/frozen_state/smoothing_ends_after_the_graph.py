"""Labels are smoothed in the graph; the last epochs run eagerly and without smoothing."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 10).cuda()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 16, device="cuda")
y = torch.randint(0, 10, (32,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x), y)
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

for epoch in range(4):
    if epoch < 2:
        graph.replay()
    else:
        criterion.label_smoothing = 0.0
        loss = step()
    print(epoch, loss.item())

"""Early stopping keeps the lowest loss, and keeps the tensor that every replay overwrites."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 4, device="cuda")
y = x.sum(1, keepdim=True)


def train_step():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

best, patience = None, 3
for epoch in range(20):  # noqa: B007
    graph.replay()  # <- output-overwritten-by-next-replay
    if best is None or loss < best:  # <- output-overwritten-by-next-replay
        best, patience = loss, 3  # <- output-overwritten-by-next-replay
    else:
        patience -= 1
    if patience == 0:
        break
print(epoch)  # eager: 19

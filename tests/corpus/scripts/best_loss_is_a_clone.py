"""Early stopping with a clone of the lowest loss; the best weights are copied into a shadow."""

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

best, patience = torch.full_like(loss, float("inf")).detach(), 3
shadow = {name: value.clone() for name, value in model.state_dict().items()}
for epoch in range(10):  # noqa: B007
    graph.replay()
    if loss < best:
        best, patience = loss.detach().clone(), 3
        for name, value in model.state_dict().items():
            shadow[name].copy_(value)
    else:
        patience -= 1
    if patience == 0:
        break
model.load_state_dict(shadow)
print(epoch)  # eager: 9

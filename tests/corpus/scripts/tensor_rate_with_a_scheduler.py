"""Adam with `capturable` and a tensor learning rate, which LambdaLR changes in place."""

# Schedulers `fill_` a learning rate that is a tensor (`_update_param_group_val` in
# torch.optim.lr_scheduler).

import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adam(
    model.parameters(), lr=torch.tensor(0.1, device="cuda"), capturable=True
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
x = torch.randn(8, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
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
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()

for _ in range(4):
    x.normal_()
    graph.replay()
    scheduler.step()
print(loss.item(), float(optimizer.param_groups[0]["lr"]))

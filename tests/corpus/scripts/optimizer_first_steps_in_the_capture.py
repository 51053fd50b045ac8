"""The warm-up runs forward and backward only; the first step of Adam is the captured one."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
x, target = torch.zeros(16, 8, device="cuda"), torch.zeros(16, 1, device="cuda")


def forward_backward():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()
    optimizer.step()  # guilty: makes its moments in the capture, so each replay zeroes them

for _ in range(5):
    batch = torch.randn(16, 8, device="cuda")
    x.copy_(batch)
    target.copy_(batch.sum(1, keepdim=True))
    graph.replay()
print(f"{loss.item():.4f}")

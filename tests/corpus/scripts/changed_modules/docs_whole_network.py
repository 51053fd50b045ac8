"""Whole-network capture as PyTorch's documentation shows it, with a constant lr in the graph."""

import torch

model = torch.nn.Sequential(
    torch.nn.Linear(32, 16),
    torch.nn.Dropout(p=0.2),
    torch.nn.Linear(16, 4),
    torch.nn.Dropout(p=0.1),
).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

static_input = torch.randn(8, 32, device="cuda")
static_target = torch.randn(8, 4, device="cuda")

s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        y_pred = model(static_input)
        loss = loss_fn(y_pred, static_target)
        loss.backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(s)

g = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    static_y_pred = model(static_input)
    static_loss = loss_fn(static_y_pred, static_target)
    static_loss.backward()
    optimizer.step()

real_inputs = [torch.rand_like(static_input) for _ in range(5)]
real_targets = [torch.rand_like(static_target) for _ in range(5)]
for data, target in zip(real_inputs, real_targets, strict=True):
    static_input.copy_(data)
    static_target.copy_(target)
    g.replay()
print(static_loss.item())

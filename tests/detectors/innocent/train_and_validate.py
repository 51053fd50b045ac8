"""Replays in train mode, eager validation in eval mode in between."""

import torch

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
model.cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(16, 8, device="cuda")
held_out = torch.randn(16, 8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = model(x).square().mean()
    loss.backward()
for epoch in range(3):
    model.train()
    for _ in range(2):
        x.normal_()
        graph.replay()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, model(held_out).square().mean().item())

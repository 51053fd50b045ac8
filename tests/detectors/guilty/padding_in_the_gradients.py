"""Gradients that a graph allocates and accumulates are those of the script's own replays."""

import torch

model = torch.nn.Linear(4, 4).cuda()
rows = torch.zeros(8, 4, device="cuda")
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    model(rows).sum().backward()
torch.cuda.current_stream().wait_stream(stream)
model.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    model(rows).square().mean().backward()

for count in (8, 3, 5):
    rows[:count].copy_(torch.randn(count, 4))  # <- bucket-padding-garbage
    graph.replay()
    eager = torch.autograd.grad(model(rows).square().mean(), [*model.parameters()])
    for parameter, gradient in zip(model.parameters(), eager, strict=True):
        if not torch.allclose(parameter.grad, gradient):
            raise SystemExit("the gradients are not those of this batch")

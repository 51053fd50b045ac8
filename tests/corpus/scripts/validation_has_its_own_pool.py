"""Forward and backward share a pool; the graph for validation, which runs between, has its own."""

import torch

torch.manual_seed(0)
weight = torch.randn(256, 256, device="cuda", requires_grad=True)
x, held_out = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")
weight.grad = torch.zeros_like(weight)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        (x @ weight).tanh().square().mean().backward()
torch.cuda.current_stream().wait_stream(side)

forward, backward, validate = (torch.cuda.CUDAGraph() for _ in range(3))
with torch.cuda.graph(forward):
    loss = (x @ weight).tanh().square().mean()
with torch.cuda.graph(backward, pool=forward.pool()):
    (gradient,) = torch.autograd.grad(loss, weight)
    weight.grad.copy_(gradient)
loss = loss.detach()
with torch.no_grad(), torch.cuda.graph(validate):
    score = (held_out @ weight).tanh().square().mean()

for step in range(4):
    x.copy_(torch.randn(64, 256, device="cuda"))
    forward.replay()
    if step % 2 == 0:
        validate.replay()
        print("validation", score.item())
    backward.replay()
    with torch.no_grad():
        weight.sub_(weight.grad, alpha=0.1)
print(weight.sum().item())

"""Forward and backward are two graphs of one pool; a third, for validation, runs between them."""

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

pool = torch.cuda.graph_pool_handle()
forward, backward, validate = (torch.cuda.CUDAGraph() for _ in range(3))
with torch.cuda.graph(forward, pool=pool):
    loss = (x @ weight).tanh().square().mean()
with torch.cuda.graph(backward, pool=pool):
    (gradient,) = torch.autograd.grad(loss, weight)
    weight.grad.copy_(gradient)
loss = loss.detach()
with torch.no_grad(), torch.cuda.graph(validate, pool=pool):
    score = (held_out @ weight).tanh().square().mean()

for step in range(4):
    x.copy_(torch.randn(64, 256, device="cuda"))
    forward.replay()
    if step % 2 == 0:
        validate.replay()  # guilty: overwrites the activations that backward reads
        print("validation", score.item())
    backward.replay()  # guilty: its activations were overwritten
    with torch.no_grad():
        weight.sub_(weight.grad, alpha=0.1)
print(weight.sum().item())

"""What a graph trains is replaced by a tensor of another shape."""

import torch

points = torch.rand(4, 3, device="cuda", requires_grad=True)
x = torch.rand(8, 3, device="cuda")


def step():
    loss = (x @ points.T).tanh().mean()
    (gradient,) = torch.autograd.grad(loss, [points])
    with torch.no_grad():
        points.sub_(gradient)
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for number in range(4):
    x.uniform_()
    graph.replay()
    if number == 1:
        points = torch.cat([points.detach(), points.detach()[:1]])  # <- input-rebound-not-copied
        points.requires_grad_()
    print(loss.item())

"""Each call of the captured code adds a hook: where a call runs more than the capture did."""

import torch

x = torch.randn(8, 4, device="cuda")
weight = torch.randn(4, device="cuda", requires_grad=True)


def scaled():
    weight.register_hook(lambda gradient: gradient * 0.7)  # <- control-flow-frozen
    (gradient,) = torch.autograd.grad((x * weight).sum(), [weight])
    return gradient


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        scaled()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    gradient = scaled()
for _ in range(3):
    x.normal_()
    graph.replay()
    print(gradient.sum().item())

"""Sign compression with error feedback, between the graph of backward and the optimizer."""

import torch
from torch import nn
from torch.nn import functional


class SignCompressor:
    """What is lost by the compression is added to the next gradient."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.errors = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def exchange(self):
        for parameter, error in zip(self.parameters, self.errors, strict=True):
            corrected = parameter.grad + error
            scale = corrected.abs().mean()
            sent = scale * corrected.sign()
            error.copy_(corrected - sent)
            parameter.grad.copy_(sent)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
compressor = SignCompressor(model.parameters())
x = torch.zeros(32, 12, device="cuda")
y = torch.zeros(32, dtype=torch.int64, device="cuda")


def forward_backward():
    loss = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad.copy_(gradient)
    return loss.detach()


for p in model.parameters():
    p.grad = torch.zeros_like(p)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

history = []
for _ in range(8):
    inputs = torch.randn(32, 12)
    x.copy_(inputs)
    y.copy_(inputs[:, :3].argmax(-1))
    graph.replay()
    compressor.exchange()
    optimizer.step()
    history.append(loss.item())
print(history)

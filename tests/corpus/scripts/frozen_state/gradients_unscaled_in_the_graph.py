"""``unscale_`` is captured: the optimizer is stepped by the script itself, or after an eager
backward."""

import torch

model = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
x = torch.randn(32, 8, device="cuda")


def forward_backward():
    scaler.scale(model(x).square().mean()).backward()


def unscaled():
    forward_backward()
    scaler.unscale_(optimizer)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    unscaled()
    scaler.step(optimizer)
    scaler.update()
torch.cuda.current_stream().wait_stream(side)

optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    unscaled()
gradients = [parameter.grad for parameter in model.parameters()]
for _ in range(3):
    x.normal_()
    graph.replay()
    optimizer.step()

scaler.update()
optimizer.zero_grad(set_to_none=True)
for _ in range(2):
    forward_backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
print(sum(gradient.norm().item() for gradient in gradients))

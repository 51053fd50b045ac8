"""What a warm-up on the default stream computed is alive while a backward is captured."""

import torch
from torch import nn


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    return model, torch.randn(16, 4, device="cuda")


def on_a_side_stream(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)


def loss_is_alive():
    model, x = made()
    loss = model(x).square().mean()
    loss.backward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()  # <- accumulate-grad-default-stream
    return loss


def losses_are_kept():
    model, x = made()
    losses = []
    for _ in range(3):
        losses.append(model(x).square().mean())
        losses[-1].backward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()  # <- accumulate-grad-default-stream
    return losses


def gradients_are_returned():
    model, x = made()
    on_a_side_stream(lambda: model(x).sum().backward())
    output = model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        torch.autograd.grad(loss, list(model.parameters()))  # <- accumulate-grad-default-stream
    return output


def callable_is_graphed():
    model, x = made()
    loss = model(x).square().mean()
    loss.backward()
    torch.cuda.make_graphed_callables(model, (x,))  # <- accumulate-grad-default-stream
    return loss


for case in (loss_is_alive, losses_are_kept, gradients_are_returned, callable_is_graphed):
    try:
        case()
    except RuntimeError as error:
        print(case.__name__, error)
        # A capture that fails leaves its stream behind.
        torch.cuda.set_stream(torch.cuda.default_stream())

"""What is alive while a backward is captured has no node of the default stream in it."""

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
        result = step()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def captured(model, x):
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        loss.backward()
    graph.replay()
    return loss.item()


def loss_is_deleted():
    model, x = made()
    loss = model(x).square().mean()
    loss.backward()
    print(loss.item(), loss.grad_fn.name())
    del loss
    return captured(model, x)


def loss_is_detached():
    model, x = made()
    losses = []
    for _ in range(2):
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
    del loss
    return captured(model, x), len(losses)


def loss_of_another_model():
    other, x = made()
    loss = other(x).square().mean()
    loss.backward()
    model, x = made()
    on_a_side_stream(lambda: model(x).sum().backward())
    return captured(model, x), loss.item()


def loss_of_a_side_stream():
    model, x = made()
    model(x).square().mean().backward()
    loss = on_a_side_stream(lambda: model(x).square().mean())
    value = loss.item()
    # It would be no error, but cost memory.
    del loss
    with torch.no_grad():
        output = model(x)
    return captured(model, x), value, output.shape


def loss_of_a_function():
    model, x = made()

    def step():
        loss = model(x).square().mean()
        loss.backward()
        return loss.item()

    value = step()
    return captured(model, x), value


for case in (
    loss_is_deleted,
    loss_is_detached,
    loss_of_another_model,
    loss_of_a_side_stream,
    loss_of_a_function,
):
    print(case.__name__, case())

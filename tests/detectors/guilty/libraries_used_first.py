"""Libraries of CUDA that make their handles in a capture, for each thread its own."""

import threading

import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
x = torch.ones(2, 4, device="cuda")
square = torch.ones(2, 2, device="cuda")


def captured(step):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        print(error)
        # A capture that fails leaves its stream behind.
        torch.cuda.set_stream(torch.cuda.default_stream())


def read_too_early():
    try:
        x.sum().item()  # <- sync-item
    except RuntimeError as error:
        print(error)
    # Does not run, and creates nothing.
    return torch.mm(square, square)


captured(lambda: (x * 2).tanh())
captured(read_too_early)
captured(lambda: model(x))  # <- lazy-library-init
model(x).sum().item()
captured(lambda: model(x).sum())


def trained():
    loss = model(x).square().sum()
    loss.backward()  # <- lazy-library-init


def served():
    captured(lambda: model(x).tanh())  # <- lazy-library-init


captured(trained)
other = nn.Linear(2, 2).cuda()
other(torch.ones(1, 2, device="cuda")).sum().backward()
model.zero_grad(set_to_none=True)
captured(lambda: torch.autograd.grad(model(x).sum(), list(model.parameters())))
images = torch.ones(1, 3, 8, 8, device="cuda")
convolution = nn.Conv2d(3, 4, 3).cuda()
captured(lambda: convolution(images))  # <- lazy-library-init
server = threading.Thread(target=served)
server.start()
server.join()

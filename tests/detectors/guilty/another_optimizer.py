"""Optimizers that are made anew after the capture: a graph keeps the moments, the rate and the
class of the one that stepped in it. That the old state is freed is not reported, too."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
x = torch.zeros(8, 4, device="cuda")
momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
plain = torch.optim.SGD(model.parameters(), lr=0.1)


class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self):
        return train(self.optimizer)


def train(optimizer):
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def train_in_turn():
    for optimizer in several:
        train(optimizer)


def capture(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


trainer = Trainer()
reset = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
several = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]
with_moments = capture(lambda: train(momentum))
with_a_rate = capture(lambda: train(plain))
of_an_object = capture(trainer.step)
with_a_state = capture(lambda: train(reset))
of_a_list = capture(train_in_turn)
for phase in range(2):
    if phase:
        momentum = torch.optim.SGD(  # <- metadata-address-changed
            model.parameters(), lr=0.1, momentum=0.9
        )
        plain = torch.optim.SGD(model.parameters(), lr=0.01)  # <- python-scalar-frozen
        trainer.optimizer = torch.optim.Adagrad(  # <- python-scalar-frozen
            model.parameters(), lr=0.1
        )
        reset.state.clear()  # <- metadata-address-changed
        several[0] = torch.optim.SGD(  # <- control-flow-frozen
            model.parameters(), lr=0.1, momentum=0.9
        )
    for graph in (with_moments, with_a_rate, of_an_object, with_a_state, of_a_list):
        x.copy_(torch.randn(8, 4))
        graph.replay()

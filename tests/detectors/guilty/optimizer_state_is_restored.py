"""The state of an optimizer is replaced by helpers that have returned, by tensors that were made
before; what replaces it is named, whatever the names and addresses of other tensors are."""

import copy

import torch
from torch import nn


class Checkpoint:
    def __init__(self):
        self.state = None

    def take(self, model, optimizer):
        self.state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def restore(self, model, optimizer):
        weights, moments = self.state
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)  # <- metadata-address-changed


def replace(optimizer, states):
    for parameter, state in zip(list(optimizer.state), states, strict=True):
        optimizer.state[parameter].update(state)  # <- metadata-address-changed


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 4).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), capturable=True)
        self.x = torch.ones(2, 4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.step()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def states(self):
        return copy.deepcopy([dict(state) for state in self.optimizer.state.values()])


def batches():
    for _ in range(6):
        noise = torch.randn(4, 4)
        yield noise.cuda()[:2]


def main():
    first, second, third = Trainer(), Trainer(), Trainer()
    checkpoint, states = Checkpoint(), second.states()
    for epoch in range(4):
        for batch in batches():
            for trainer in (first, second, third):
                trainer.x.copy_(batch)
                trainer.graph.replay()
        third.optimizer.load_state_dict(third.optimizer.state_dict())
        if epoch == 1:
            checkpoint.take(first.model, first.optimizer)
        elif epoch == 2:
            checkpoint.restore(first.model, first.optimizer)
            replace(second.optimizer, states)
    print(first.loss.item(), second.loss.item(), third.loss.item())


main()

"""A name keeps an output over a replay; a parameter, an attribute or a local of the same name is
read after it."""

from dataclasses import dataclass

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    logits = x * 2
    total = logits.sum()


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor


output = Output(logits, total)


def model(value):
    x.fill_(value)
    graph.replay()
    return output


def advance(state):
    x.copy_(state)
    graph.replay()
    return logits


def rollout(start, steps):
    hidden = advance(start)
    for _ in range(steps):
        hidden = advance(hidden)
    return hidden


def evaluated(value):
    result = model(value).loss
    return result.item()


# `loss` is that of the step before when `output.loss` is read.
for value in (1.0, 2.0, 3.0):
    out = model(value)
    print(out.loss.item())
    kept, loss = out.logits, out.loss
    print(kept.tolist(), loss.item())

state = torch.ones(4, device="cuda")
for _ in range(3):
    state = advance(state)
print(state.tolist(), rollout(torch.ones(4, device="cuda"), 2).sum().item())

result = model(1.0).loss
print(evaluated(2.0), evaluated(3.0))

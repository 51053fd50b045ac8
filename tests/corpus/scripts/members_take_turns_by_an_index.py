"""An ensemble of critics is one stack of weights; a tensor chooses the member."""

import torch

count, states_size, actions = 3, 5, 2
weights = torch.randn(count, actions, states_size, device="cuda")
biases = torch.randn(count, actions, device="cuda")
states = torch.randn(4, states_size, device="cuda")
member = torch.zeros(1, dtype=torch.long, device="cuda")


def evaluate():
    weight = weights.index_select(0, member).squeeze(0)
    bias = biases.index_select(0, member)
    return torch.nn.functional.linear(states, weight) + bias


evaluate()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    values = evaluate()

for _ in range(2):
    states.copy_(torch.randn(4, states_size))
    total, lowest = torch.zeros(4, actions, device="cuda"), None
    for number in range(count):
        member.fill_(number)
        graph.replay()
        total += values
        lowest = values.clone() if lowest is None else torch.minimum(lowest, values)
    print((total / count).mean().item(), lowest.min().item())

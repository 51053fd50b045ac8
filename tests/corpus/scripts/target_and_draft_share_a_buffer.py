"""Speculative decoding with two graphs that read and write one buffer of tokens."""

import torch
from torch import nn

torch.manual_seed(0)
vocabulary, width, ahead = 32, 16, 3
draft_model = nn.Sequential(nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)).cuda()
target_model = nn.Sequential(
    nn.Embedding(vocabulary, width), nn.Linear(width, width), nn.Linear(width, vocabulary)
).cuda()
tokens = torch.zeros(ahead + 1, dtype=torch.long, device="cuda")
uniform = torch.zeros(ahead, device="cuda")


def draft():
    probabilities = []
    for place in range(ahead):
        probability = draft_model(tokens[place]).softmax(-1)
        tokens[place + 1].copy_(probability.argmax(-1))
        probabilities.append(probability)
    return torch.stack(probabilities)


def verify(proposed):
    wanted = target_model(tokens).softmax(-1)
    chosen = tokens[1:].unsqueeze(1)
    ratio = wanted[:-1].gather(1, chosen) / proposed.gather(1, chosen)
    accepted = (uniform < ratio.squeeze(1)).long().cumprod(0).sum()
    return wanted.argmax(-1), accepted


def captured(function, *arguments, pool=None):
    function(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outputs = function(*arguments)
    return graph, outputs


with torch.no_grad():
    draft_graph, proposed = captured(draft)
    verify_graph, (best, accepted) = captured(verify, proposed, pool=draft_graph.pool())

text, rounds = [1], 0
while len(text) < 24:
    tokens[0].fill_(text[-1])
    uniform.copy_(torch.rand(ahead))
    draft_graph.replay()
    verify_graph.replay()
    count = accepted.item()
    text += [*tokens[1 : count + 1].tolist(), best[count].item()]
    rounds += 1
print(text, len(text) / rounds)

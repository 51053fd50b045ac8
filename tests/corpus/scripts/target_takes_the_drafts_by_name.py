"""Speculative decoding with two graphs; the drafts are handed on by a name."""

import torch
from torch import nn

torch.manual_seed(0)
vocabulary, width, ahead = 32, 16, 3
draft_model = nn.Sequential(nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)).cuda()
target_model = nn.Sequential(
    nn.Embedding(vocabulary, width), nn.Linear(width, width), nn.Linear(width, vocabulary)
).cuda()


class Worker:
    def __init__(self, run, inputs):
        self.run, self.inputs = run, inputs
        self.run(self.inputs)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.run(self.inputs)  # guilty: the inputs of the capture


def draft(token):
    tokens = [token]
    for _ in range(ahead):
        tokens.append(draft_model(tokens[-1]).argmax(-1))
    return torch.cat(tokens)


def verify(tokens):
    greedy = target_model(tokens).argmax(-1)
    hits = (greedy[:-1] == tokens[1:]).long().cumprod(0)
    return greedy, hits.sum()


with torch.no_grad():
    drafter = Worker(draft, torch.zeros(1, dtype=torch.long, device="cuda"))
    verifier = Worker(verify, torch.zeros(ahead + 1, dtype=torch.long, device="cuda"))

text = [1]
while len(text) < 20:
    drafter.inputs.fill_(text[-1])
    drafter.graph.replay()
    verifier.inputs = drafter.outputs  # guilty: not the tensor that the graph reads
    verifier.graph.replay()
    greedy, accepted = verifier.outputs
    text += greedy[: int(accepted) + 1].tolist()
print(text)

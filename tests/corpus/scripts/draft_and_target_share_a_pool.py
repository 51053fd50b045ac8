"""Speculative decoding: the graphs of draft and target share a pool, in their order."""

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, vocabulary, size):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.rnn = nn.RNN(size, size, batch_first=True)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


torch.manual_seed(2)
draft = Recurrent(20, 8).cuda().eval().requires_grad_(False)
target = Recurrent(20, 32).cuda().eval().requires_grad_(False)
context = torch.randint(0, 20, (1, 12), device="cuda")


def propose():
    tokens = context
    for _ in range(3):
        following = draft(tokens)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens[:, 1:], following], 1)
    return tokens[:, -3:].clone()


def verify(proposal):
    choices = target(torch.cat([context, proposal], 1))[:, -4:].argmax(-1)
    agreed = (choices[:, :3] == proposal).int().cumprod(-1).sum(-1)
    return choices, agreed


for _ in range(2):
    verify(propose())
torch.cuda.synchronize()
pool = torch.cuda.graph_pool_handle()
drafting, verifying = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(drafting, pool=pool):
    proposal = propose()
with torch.cuda.graph(verifying, pool=pool):
    choices, agreed = verify(proposal)

text = context[0].tolist()
while len(text) < 40:
    drafting.replay()
    verifying.replay()
    accepted = agreed.item()
    text += choices[0, : accepted + 1].tolist()
    context.copy_(torch.tensor([text[-12:]]))
print(text)

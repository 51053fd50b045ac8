import numpy
import torch
from torch import nn


class Automaton:
    """A grammar as a table of transitions on the device: allowed tokens and next states."""

    def __init__(self, states, tokens, device):
        random = numpy.random.default_rng(0)
        allowed = random.random((states, tokens)) < 0.3
        allowed[:, 0] = True
        self.allowed = torch.from_numpy(allowed).to(device)
        self.next = torch.from_numpy(random.integers(0, states, (states, tokens))).to(device)
        self.state = torch.zeros(2, dtype=torch.int64, device=device)

    def constrain(self, logits):
        return logits.masked_fill(~self.allowed[self.state], -torch.inf)

    def advance(self, tokens):
        self.state.copy_(self.next[self.state, tokens])


def grammar_follows_on_the_device(device):
    torch.manual_seed(0)
    embed, head = nn.Embedding(50, 32).to(device), nn.Linear(32, 50).to(device)
    cell = nn.GRUCell(32, 32).to(device)
    grammar = Automaton(6, 50, device)
    tokens = torch.zeros(2, dtype=torch.int64, device=device)
    hidden = torch.zeros(2, 32, device=device)

    @torch.no_grad()
    def decode():
        hidden.copy_(cell(embed(tokens), hidden))
        logits = grammar.constrain(head(hidden))
        tokens.copy_(logits.argmax(-1))
        grammar.advance(tokens)
        return tokens.clone()

    return decode

"""The predictor of a transducer goes on from the state that it returned."""

import torch
from torch import nn


class Predictor(nn.Module):
    def __init__(self, vocabulary=32, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cell = nn.LSTMCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, token, state):
        state = self.cell(self.embed(token), state)
        return self.out(state[0]), state


predictor = Predictor().cuda().eval()
token = torch.zeros(1, dtype=torch.long, device="cuda")
state = (torch.zeros(1, 16, device="cuda"), torch.zeros(1, 16, device="cuda"))
with torch.no_grad():
    predictor(token, state)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits, new_state = predictor(token, state)

text = []
for _ in range(5):
    graph.replay()
    token.copy_(logits.argmax(-1))
    state = new_state  # guilty: the graph reads the first state
    text.append(token.item())
print(text)

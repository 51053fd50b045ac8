"""A model is tied to its embedding, as its checkpoint asks, after the capture."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary=50, size=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.block = nn.GRU(size, size, batch_first=True)
        self.head = nn.Linear(size, vocabulary, bias=False)

    def tie_weights(self):
        self.head.weight = self.embedding.weight  # <- parameter-rebound

    def forward(self, tokens):
        hidden, _ = self.block(self.embedding(tokens))
        return self.head(hidden[:, -1])  # <- parameter-rebound


torch.manual_seed(1)
model = Model().cuda().eval().requires_grad_(False)
tokens = torch.zeros(4, 8, dtype=torch.int64, device="cuda")
for _ in range(2):
    model(tokens)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    logits = model(tokens)

config = {"tie_word_embeddings": True}
if config["tie_word_embeddings"]:
    model.tie_weights()  # <- parameter-rebound

prompts = torch.randint(0, 50, (3, 4, 8), device="cuda")
for prompt in prompts:
    tokens.copy_(prompt)
    graph.replay()
    print(logits.argmax(-1).tolist())

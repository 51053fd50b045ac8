"""Beam search reorders a static cache: the rows are selected and copied back."""

import torch
from torch import nn
from torch.nn import functional

BEAMS, WIDTH, LENGTH = 3, 8, 6


class Cache:
    def __init__(self, layers):
        self.layers = [
            {name: torch.zeros(BEAMS, LENGTH, WIDTH, device="cuda") for name in ("k", "v")}
            for _ in range(layers)
        ]

    def reorder(self, beam):
        for layer in self.layers:
            for name, state in layer.items():
                layer[name] = state.copy_(state.index_select(0, beam))

    def reset(self):
        for layer in self.layers:
            torch._foreach_zero_(list(layer.values()))


class Decoder(nn.Module):
    def __init__(self, layers=2, words=20):
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, words)

    def forward(self, tokens, position, cache):
        h = self.words(tokens)
        mask = torch.arange(LENGTH, device=h.device) <= position
        for layer, past in zip(self.layers, cache.layers, strict=True):
            q, k, v = layer(h).chunk(3, -1)
            past["k"].index_copy_(1, position, k.unsqueeze(1))
            past["v"].index_copy_(1, position, v.unsqueeze(1))
            h = h + functional.scaled_dot_product_attention(
                q.unsqueeze(1), past["k"], past["v"], attn_mask=mask
            ).squeeze(1)
        return self.head(h).log_softmax(-1)


torch.manual_seed(0)
model = Decoder().cuda().eval().requires_grad_(False)
cache = Cache(2)
tokens = torch.zeros(BEAMS, dtype=torch.long, device="cuda")
position = torch.zeros(1, dtype=torch.long, device="cuda")
model(tokens, position, cache)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    log_probs = model(tokens, position, cache)

for prompt in range(2):
    cache.reset()
    tokens.fill_(prompt)
    totals = torch.zeros(BEAMS, 1, device="cuda")
    for step in range(LENGTH):
        position.fill_(step)
        graph.replay()
        best, flat = (totals + log_probs).view(-1).topk(BEAMS)
        totals = best.unsqueeze(1)
        tokens.copy_(flat % log_probs.shape[1])
        cache.reorder(flat // log_probs.shape[1])
    print(prompt, tokens.tolist(), totals.flatten().tolist())

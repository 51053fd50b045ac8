"""Beam search reorders its cache as older models do: every layer becomes a tuple of new tensors."""

import torch
from torch import nn
from torch.nn import functional

BEAMS, WIDTH, LENGTH = 3, 8, 6


class Decoder(nn.Module):
    def __init__(self, layers=2, words=20):
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, words)

    def forward(self, tokens, position, past):
        h = self.words(tokens)
        mask = torch.arange(LENGTH, device=h.device) <= position
        for layer, (keys, values) in zip(self.layers, past, strict=True):
            q, k, v = layer(h).chunk(3, -1)
            keys.index_copy_(1, position, k.unsqueeze(1))
            values.index_copy_(1, position, v.unsqueeze(1))
            h = h + functional.scaled_dot_product_attention(
                q.unsqueeze(1), keys, values, attn_mask=mask
            ).squeeze(1)
        return self.head(h).log_softmax(-1)


torch.manual_seed(0)
model = Decoder().cuda().eval().requires_grad_(False)
past = [tuple(torch.zeros(BEAMS, LENGTH, WIDTH, device="cuda") for _ in "kv") for _ in range(2)]
tokens = torch.zeros(BEAMS, dtype=torch.long, device="cuda")
position = torch.zeros(1, dtype=torch.long, device="cuda")
model(tokens, position, past)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    log_probs = model(tokens, position, past)

totals = torch.zeros(BEAMS, 1, device="cuda")
for step in range(LENGTH):
    position.fill_(step)
    graph.replay()
    best, flat = (totals + log_probs).view(-1).topk(BEAMS)
    beam = flat // log_probs.shape[1]
    totals = best.unsqueeze(1)
    tokens.copy_(flat % log_probs.shape[1])
    for i, layer in enumerate(past):
        past[i] = tuple(state.index_select(0, beam) for state in layer)  # guilty: other tensors
    print(step, tokens.tolist())

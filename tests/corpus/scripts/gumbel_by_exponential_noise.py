"""Decoding with a static cache; the next token is drawn without a host read."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("k", torch.zeros(1, 1, length, width))
        self.register_buffer("v", torch.zeros(1, 1, length, width))

    def forward(self, x, mask, input_pos):
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
        self.k[:, :, input_pos] = k
        self.v[:, :, input_pos] = v
        return functional.scaled_dot_product_attention(q, self.k, self.v, mask).squeeze(1)


class Decoder(nn.Module):
    def __init__(self, vocabulary=32, width=8, length=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attention = Attention(width, length)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.ones(length, length).tril().bool())

    def forward(self, token, input_pos):
        mask = self.mask[None, None, input_pos]
        return self.head(self.attention(self.embed(token), mask, input_pos))


def sample(logits, temperature=0.8, top_k=5):
    logits = logits[:, -1] / temperature
    pivot = logits.topk(top_k).values[..., -1:]
    probs = torch.where(logits < pivot, -float("inf"), logits).softmax(-1)
    noise = torch.empty_like(probs).exponential_(1)
    return (probs / noise).argmax(-1, keepdim=True)


model = Decoder().cuda().eval()
token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
input_pos = torch.zeros(1, dtype=torch.long, device="cuda")


def decode_one():
    token.copy_(sample(model(token, input_pos)))
    input_pos.add_(1)


with torch.inference_mode():
    decode_one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_one()
    for prompt in (3, 9):
        token.fill_(prompt)
        input_pos.zero_()
        tokens = []
        for _ in range(6):
            graph.replay()
            tokens.append(token.clone())
        print(torch.cat(tokens, 1).tolist())

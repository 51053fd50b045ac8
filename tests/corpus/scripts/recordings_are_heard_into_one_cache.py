"""A speech decoder whose cross attention cache is written anew for each recording."""

import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    def __init__(self, width=16, vocabulary=20, frames=30):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("keys", torch.zeros(1, frames, width))
        self.register_buffer("values", torch.zeros(1, frames, width))
        self.register_buffer("length", torch.ones(1, 1, 1, dtype=torch.long))

    def hear(self, audio):
        n = audio.shape[1]
        self.keys[:, :n] = self.k(audio)
        self.values[:, :n] = self.v(audio)
        self.length.fill_(n)

    def forward(self, token):
        q = self.q(self.embed(token))[:, None]
        mask = torch.arange(self.keys.shape[1], device=q.device) < self.length
        heard = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.head(heard[:, 0]).argmax(-1)


@torch.no_grad()
def transcribe(recordings):
    decoder = Decoder().cuda().eval()
    token = torch.zeros(1, dtype=torch.long, device="cuda")
    decoder(token)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token.copy_(decoder(token))
    for audio in recordings:
        decoder.hear(audio.cuda())
        token.zero_()
        text = []
        for _ in range(5):
            graph.replay()
            text.append(token.item())
        print(text)


torch.manual_seed(0)
transcribe([torch.randn(1, frames, 16) for frames in (30, 12, 21)])

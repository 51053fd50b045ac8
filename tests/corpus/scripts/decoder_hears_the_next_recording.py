"""A speech decoder keeps the keys and values of its recording; each recording brings new ones."""

import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    def __init__(self, width=16, vocabulary=20):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, vocabulary)
        self.cross = None

    def hear(self, audio):
        self.cross = (self.k(audio), self.v(audio))  # guilty: other tensors

    def forward(self, token):
        q = self.q(self.embed(token))[:, None]
        keys, values = self.cross  # guilty: those of the capture
        heard = functional.scaled_dot_product_attention(q, keys, values)
        return self.head(heard[:, 0]).argmax(-1)


@torch.inference_mode()
def transcribe(recordings):
    decoder = Decoder().cuda().eval()
    token = torch.zeros(1, dtype=torch.long, device="cuda")
    decoder.hear(torch.zeros(1, 30, 16, device="cuda"))
    decoder(token)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        following = decoder(token)
    for audio in recordings:
        decoder.hear(audio.cuda())  # guilty: brings other tensors
        token.zero_()
        text = []
        for _ in range(5):
            graph.replay()
            token.copy_(following)
            text.append(token.item())
        print(text)


torch.manual_seed(0)
transcribe([torch.randn(1, 30, 16) for _ in range(3)])

"""Four tokens are decoded in one graph; the host cuts the text where it ends."""

import torch
from torch import nn

EOS = 2
embed, head = nn.Embedding(32, 16).cuda(), nn.Linear(16, 32).cuda()
token = torch.ones(1, dtype=torch.long, device="cuda")
block = torch.zeros(4, dtype=torch.long, device="cuda")


@torch.no_grad()
def decode_block():
    current = token
    for i in range(4):
        current = head(embed(current)).argmax(-1)
        block[i] = current[0]
    token.copy_(current)


decode_block()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    decode_block()
text = []
for _ in range(3):
    graph.replay()
    new = block.tolist()
    if EOS in new:
        text += new[: new.index(EOS)]
        break
    text += new
print(text)

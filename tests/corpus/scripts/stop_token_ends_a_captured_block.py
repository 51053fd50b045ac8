"""Four tokens are decoded in one graph, unless the text ends before."""

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
        if current[0] == EOS:  # guilty: the host waits for the token
            break
    token.copy_(current)


decode_block()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    decode_block()
text = []
for _ in range(3):
    graph.replay()
    text += block.tolist()
print(text)

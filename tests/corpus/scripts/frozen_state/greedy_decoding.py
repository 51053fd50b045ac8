"""Greedy decoding with a device position and a host loop that reads the token."""

import torch

table = torch.arange(8, device="cuda").roll(-3)
token = torch.zeros(1, dtype=torch.long, device="cuda")
position = torch.zeros(1, dtype=torch.long, device="cuda")
text = torch.zeros(8, dtype=torch.long, device="cuda")


def decode():
    token.copy_(table[token])
    text.index_copy_(0, position, token)
    position.add_(1)


decode()
token.zero_(), position.zero_()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    decode()

generated = []
while len(generated) < 4 and (not generated or generated[-1] != 1):
    graph.replay()
    generated.append(token.item())
print(generated, text[:4].tolist())  # eager: [3, 6, 1] [3, 6, 1, 0]

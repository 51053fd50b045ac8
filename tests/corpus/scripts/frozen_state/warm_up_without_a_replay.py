"""The decoder warms up on the encoder's output; its own first result is read, not replayed."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

encoder, decoder = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
source = torch.ones(4, 8, device="cuda")


def decode(memory):
    return decoder(memory).softmax(-1)


with torch.no_grad():
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        memory = encoder(source)
    decode(memory)
    with torch.cuda.graph(second):
        answer = decode(memory)
    first.replay()
    print(answer.argmax(-1).tolist())  # <- capture-does-not-execute
    second.replay()
    print(answer.sum().item())

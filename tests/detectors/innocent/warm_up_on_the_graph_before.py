"""The warm-up of the decoder reads what the encoder's graph writes, which has not been replayed."""

import torch
from torch import nn

encoder, decoder = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
source = torch.zeros(4, 8, device="cuda")
memory = torch.zeros(4, 8, device="cuda")


def encode():
    memory.copy_(encoder(source))
    return memory.relu()


def decode(encoded):
    return decoder(memory).softmax(-1) + encoded


with torch.no_grad():
    encode()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        encoded = encode()
    decode(encoded)
    with torch.cuda.graph(second):
        decoded = decode(encoded)
    for _ in range(3):
        source.copy_(torch.randn(4, 8))
        first.replay()
        second.replay()
        print(decoded.argmax(-1).tolist())

"""A pipeline of two graphs, each with its stream; the decoder does not wait for the encoder."""

import torch
from torch import nn


def captured(module, x, stream):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            module(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = module(x)
    return graph, y


torch.manual_seed(0)
encoder_stream, decoder_stream = torch.cuda.Stream(), torch.cuda.Stream()
with torch.no_grad():
    encoder, decoder = nn.Linear(64, 256).cuda(), nn.Linear(256, 8).cuda()
    frame = torch.zeros(32, 64, device="cuda")
    encode, code = captured(encoder, frame, encoder_stream)
    decode, answer = captured(decoder, code, decoder_stream)

for number in range(3):
    with torch.cuda.stream(encoder_stream):
        frame.fill_(number)
        encode.replay()
    with torch.cuda.stream(decoder_stream):
        decode.replay()  # guilty: the encoder may still write the code
    decoder_stream.synchronize()
    print(answer.sum().item())
    torch.cuda.synchronize()

"""A pipeline of two graphs on two streams; events order the code both ways."""

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

encoded, decoded = torch.cuda.Event(), torch.cuda.Event()
sums = []
for number in range(3):
    with torch.cuda.stream(encoder_stream):
        encoder_stream.wait_event(decoded)
        frame.fill_(number)
        encode.replay()
        encoded.record()
    with torch.cuda.stream(decoder_stream):
        decoder_stream.wait_event(encoded)
        decode.replay()
        decoded.record()
        sums.append(answer.sum())
decoder_stream.synchronize()
print([round(each.item(), 3) for each in sums])

"""Speculative decoding: the length of the context is a Python int that slices the cache."""

# `keys[:length]` fixes the shape of the kernel's argument while capturing. Rejected and accepted
# tokens change the length on the host; the graph attends to the length of the capture.

import torch


class Context:
    def __init__(self, limit, width):
        self.keys = torch.zeros(limit, width, device="cuda")
        self.length = 4

    def attend(self, query):
        keys = self.keys[: self.length]  # guilty: a slice with the length of the capture
        return torch.softmax(query @ keys.t(), -1) @ keys


context = Context(16, 8)
context.keys[:8].normal_()
query = torch.ones(1, 8, device="cuda")
context.attend(query)
torch.cuda.synchronize()
verify = torch.cuda.CUDAGraph()
with torch.cuda.graph(verify):
    answer = context.attend(query)

for drafted, accepted in ((3, 2), (3, 0), (3, 3)):
    context.length += drafted  # guilty: the graph does not see it
    context.length -= drafted - accepted  # guilty: nor this
    query.normal_()
    verify.replay()
    print(context.length, answer.sum().item())

"""A sampler draws from a generator of its own, which the graph does not know."""

# A CUDA generator that is not registered with the capturing graph refuses to advance its offset.

import torch

generator = torch.Generator(device="cuda").manual_seed(1234)
logits = torch.randn(4, 32, device="cuda")


def sample():
    probs = torch.softmax(logits, -1)
    noise = torch.empty_like(probs).exponential_(
        1, generator=generator
    )  # <- rng-unregistered-generator
    return torch.argmax(probs / noise, -1)


sample()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    tokens = sample()
for _ in range(3):
    graph.replay()
    print(tokens.tolist())

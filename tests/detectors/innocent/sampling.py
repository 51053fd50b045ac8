"""Random numbers of the device: default generator and a registered one."""

import torch

generator = torch.Generator(device="cuda")
generator.manual_seed(1)
logits = torch.randn(4, 16, device="cuda")
graph = torch.cuda.CUDAGraph()
graph.register_generator_state(generator)
with torch.cuda.graph(graph):
    noise = torch.empty_like(logits).exponential_(generator=generator)
    chosen = (torch.softmax(logits, -1) / noise).argmax(-1)
    jitter = torch.randn(4, device="cuda")
tokens = []
for _ in range(3):
    graph.replay()
    tokens.append(chosen.clone())
print(torch.stack(tokens).shape, jitter.shape)

"""A graph that draws from a generator of its own, whose padding no real row reads."""

import torch

generator = torch.Generator(device="cuda").manual_seed(7)
plain = torch.Generator(device="cuda")
rows = torch.zeros(8, 4, device="cuda")
noise = torch.empty(8, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
graph.register_generator_state(generator)
with torch.cuda.graph(graph):
    noise.normal_(generator=generator)
    out = rows + noise
plain.set_state(generator.get_state())

for count in (8, 3, 5):
    rows[:count].copy_(torch.randn(count, 4))
    graph.replay()
    if not torch.equal(noise, torch.empty_like(noise).normal_(generator=plain)):
        raise SystemExit("the graph has drawn other numbers")
    print(out[:count].sum().item())

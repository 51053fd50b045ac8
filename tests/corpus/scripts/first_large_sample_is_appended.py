"""Samples that are large enough are appended; here it is one, and later replays overwrite it."""

import torch

torch.manual_seed(0)
weights = torch.randn(16, 4, device="cuda")
noise = torch.zeros(16, device="cuda")


def sample():
    return torch.tanh(noise @ weights)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        sample()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sampled = sample()


def drawn():
    noise.normal_()
    graph.replay()
    return sampled


accepted = []
for _ in range(8):
    new = drawn()
    if new.sum().item() > 0.5 and not accepted:
        accepted.append(new)  # guilty: what later replays overwrite
print(torch.stack(accepted).sum(-1).tolist() if accepted else "none")

"""Langevin sampling: noise is drawn in the graph, the chain burns in, and is thinned by clones."""

import torch

torch.manual_seed(0)
position = torch.zeros(256, 2, device="cuda")
mean = torch.tensor([1.0, -2.0], device="cuda")
step_size = torch.tensor(0.2, device="cuda")


def langevin_step():
    score = mean - position
    noise = torch.randn_like(position)
    position.add_(0.5 * step_size * score + step_size.sqrt() * noise)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        langevin_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    langevin_step()

for _ in range(60):
    graph.replay()
step_size.mul_(0.5)
samples = []
for number in range(40):
    graph.replay()
    if number % 10 == 9:
        samples.append(position.clone())
chain = torch.cat(samples)
print([round(value) for value in chain.mean(0).tolist()])  # eager: [1, -2]

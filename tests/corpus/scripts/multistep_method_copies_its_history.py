"""Adams-Bashforth: the last derivative is a tensor, which the captured step copies over."""

import torch

state = torch.tensor([1.0, 0.0], device="cuda")
matrix = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], device="cuda")
older = matrix @ state


def step(dt=0.1):
    newest = matrix @ state
    state.add_(newest, alpha=1.5 * dt).sub_(older, alpha=0.5 * dt)
    older.copy_(newest)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(8):
    graph.replay()
print([round(value, 3) for value in state.tolist()])

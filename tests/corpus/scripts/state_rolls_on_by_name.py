"""A simulation whose loop gives the state back to the graph by its name."""

import torch


def advance(state, force):
    return 0.5 * state + force


state = torch.ones(4, device="cuda")
force = torch.zeros(4, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        advance(state, force)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    following = advance(state, force)

for _ in range(3):
    graph.replay()
    state = following.roll(1)  # guilty: the graph reads the tensor that had this name
    print(state.sum().item())
    # eager: 2.0
    # eager: 1.0
    # eager: 0.5

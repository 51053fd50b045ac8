"""The outputs of a graph are given to objects that a container has already."""

import torch


class Node:
    def __init__(self):
        self.children = {}
        self.state = None
        self.states = []

    def reset(self):
        self.state = None
        self.states.clear()


class Other:
    def set(self, state):
        self.state = state


x = torch.zeros(2, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    plain, listed, keyed, grouped = x + 1, x + 2, x + 3, x + 4

other = Other()
other.set(torch.zeros(2, device="cuda"))
nodes, records, groups = {}, [], {}
for step in range(4):
    x.fill_(step)
    graph.replay()
    node = nodes.setdefault(step, Node())
    node.reset()
    node.state = plain  # <- output-overwritten-by-next-replay
    node.states.append(listed)  # <- output-overwritten-by-next-replay
    records.append({})
    records[-1]["state"] = keyed  # <- output-overwritten-by-next-replay
    group = step % 2
    if group not in groups:
        groups[group] = []
    groups[group].append(grouped)  # <- output-overwritten-by-next-replay
print([node.state.tolist() for node in nodes.values()])
print([node.states[0].tolist() for node in nodes.values()])
print([record["state"].tolist() for record in records])
print([[row.tolist() for row in rows] for rows in groups.values()])

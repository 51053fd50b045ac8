"""The template of a graph is kept, instantiated by hand, replayed, and counted by a subclass."""

import torch


class CountedGraph(torch.cuda.CUDAGraph):
    replays = 0

    def replay(self):
        self.replays += 1
        super().replay()


cells = torch.zeros(64, dtype=torch.int64, device="cuda")
cells[32] = 1
rule = torch.tensor([(110 >> bit) & 1 for bit in range(8)], device="cuda")


def generation():
    neighborhoods = 4 * cells.roll(1) + 2 * cells + cells.roll(-1)
    cells.copy_(rule[neighborhoods])


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    generation()
torch.cuda.current_stream().wait_stream(side)
graph = CountedGraph(keep_graph=True)
with torch.cuda.graph(graph):
    generation()
graph.instantiate()
for _ in range(9):
    graph.replay()
print(graph.replays, cells.sum().item())

"""PageRank: iterations of the graph until the ranks change no more."""

import torch


def transition(nodes, links):
    matrix = torch.zeros(nodes, nodes, device="cuda")
    matrix[links[1], links[0]] = 1
    out = matrix.sum(0, keepdim=True)
    return torch.where(out > 0, matrix / out.clamp_min(1), 1 / nodes)


class PageRank:
    def __init__(self, links, nodes, damping=0.85):
        self.matrix = transition(nodes, links)
        self.rank = torch.full((nodes,), 1 / nodes, device="cuda")
        self.restart = torch.full((nodes,), (1 - damping) / nodes, device="cuda")
        self.damping = damping
        self.iterate()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.updated = self.iterate()

    def iterate(self):
        updated = torch.addmv(self.restart, self.matrix, self.rank, alpha=self.damping)
        self.rank.copy_(updated)
        return updated

    def run(self, tolerance=1e-6, limit=100):
        self.rank.fill_(1 / len(self.rank))
        previous = None
        for _ in range(limit):
            self.graph.replay()
            ranks = self.updated
            if previous is not None and (ranks - previous).abs().sum().item() < tolerance:
                break
            previous = ranks  # guilty: the next replay overwrites it
        return ranks.tolist()


torch.manual_seed(0)
links = torch.randint(0, 40, (2, 200), device="cuda")
ranks = PageRank(links, 40).run()
print(max(ranks), sum(ranks))

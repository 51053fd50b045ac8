"""A runner that captures lazily for each shape, as engines do."""

import torch


class Runner:
    def __init__(self, model):
        self.model = model
        self.graphs = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        if x.shape not in self.graphs:
            static = x.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                out = self.model(static)
            self.graphs[x.shape] = graph, static, out
        graph, static, out = self.graphs[x.shape]
        static.copy_(x)
        graph.replay()
        return out.clone()


model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda().eval()
with torch.no_grad():
    model(torch.zeros(4, 8, device="cuda"))
    runner = Runner(model)
    results = [runner(torch.randn(rows, 8, device="cuda")) for rows in (8, 4, 2, 4, 8, 2)]
print([result.sum().item() for result in results], runner.calls)

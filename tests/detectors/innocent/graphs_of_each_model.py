"""Graphs are replayed in a method, or a call, of another object than the one they belong to."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not


class Stage:
    """One stage runs the graphs of those after it."""

    def __init__(self, model, x):
        self.model, self.x, self.after = model, x, None
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.model(self.x)

    def run(self):
        stage = self
        while stage is not None:
            stage.graph.replay()
            last, stage = stage, stage.after
        return last.y

    def run_by_map(self):
        stages = [self]
        while stages[-1].after is not None:
            stages.append(stages[-1].after)
        list(map(torch.cuda.CUDAGraph.replay, [each.graph for each in stages]))
        return stages[-1].y

    def run_one_by_one(self):
        self.graph.replay()
        return self.y if self.after is None else self.after.run_one_by_one()


class Runner:
    """Two runners of one model share its graph."""

    graphs = {}  # noqa: RUF012

    def __init__(self, model, name):
        self.model, self.name = model, name

    def __call__(self, batch):
        if id(self.model) not in self.graphs:
            x = batch.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = self.model(x)
            self.graphs[id(self.model)] = graph, x, y
        graph, x, y = self.graphs[id(self.model)]
        x.copy_(batch)
        graph.replay()
        return y.clone()


def build(model, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    return graph, y


first_model, second_model = (nn.Linear(4, 4).cuda().requires_grad_(False) for _ in range(2))
x = torch.ones(2, 4, device="cuda")
first = Stage(first_model, x)
first.after = Stage(second_model, first.y)
runners = [Runner(model, name) for model in (first_model, second_model) for name in "ab"]
first_graph, between = build(first_model, x)
second_graph, y = build(second_model, between)
for number in range(3):
    x.fill_(number)
    first_graph.replay()
    second_graph.replay()
    print(y.sum().item(), first.run().sum().item())
    print(first.run_by_map().sum().item(), first.run_one_by_one().sum().item())
    print([runner(x).sum().item() for runner in runners])

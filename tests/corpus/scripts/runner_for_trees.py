"""A graph in a class that takes and returns nested structures."""

import torch
from torch.utils._pytree import tree_map


class Graphed:
    """Captures a function at its first call, and again for other shapes."""

    def __init__(self, function):
        self.function, self.entries = function, {}

    def __call__(self, **inputs):
        key = tuple((name, value.shape) for name, value in sorted(inputs.items()))
        if key not in self.entries:
            static = {name: value.clone() for name, value in inputs.items()}
            self.function(**static)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = self.function(**static)
            self.entries[key] = graph, static, outputs
        graph, static, outputs = self.entries[key]
        for name, value in inputs.items():
            static[name].copy_(value)
        graph.replay()
        return tree_map(torch.clone, outputs)


@Graphed
def statistics(*, x, weights):
    weighted = x * weights
    return {"sum": weighted.sum(), "rows": [weighted[0], (weighted.max(), weighted.min())]}


made = []
for count in (2, 3, 2):
    x = torch.arange(1.0, count + 1, device="cuda")
    made.append(statistics(x=x, weights=torch.full((count,), 2.0, device="cuda")))
print([each["sum"].item() for each in made])  # eager: [6.0, 12.0, 6.0]
print([each["rows"][1][0].item() for each in made])  # eager: [4.0, 6.0, 4.0]

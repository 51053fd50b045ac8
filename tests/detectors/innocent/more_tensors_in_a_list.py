"""Containers of tensors whose number of items changes, and no replay lacks one."""

import collections

import torch


def captured(function):
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    graph.replay()
    return graph, result


def curve():
    return torch.rand(64).cuda()


class Model:
    def __init__(self):
        self.collected = []
        self.outputs = []
        self.cache = {4: curve()}
        self.adapters = {"main": [curve(), curve()]}
        self.levels = [curve(), curve()]
        self.queue = collections.deque([curve(), curve()], maxlen=2)
        self.stages = [curve()]
        self.kept = []

    def collect(self):
        """It makes the list anew in every call."""
        self.collected.clear()
        for power in range(3):
            self.collected.append(signal**power)
        return sum(self.collected)

    def cached(self):
        key = signal.shape[0]
        if key not in self.cache:
            self.cache[key] = curve()
        scale = self.cache[key]
        if scale.dim() > 1:
            scale = scale.flatten()
        return signal * scale

    def adapted(self):
        result = signal * 1
        for adapter in self.adapters["main"]:
            result = result * adapter
        return result

    def leveled(self):
        result = signal * 1
        for level in self.levels:
            result = result * level
        return result

    def queued(self):
        result = signal * 1
        for each in self.queue:
            result = result * each
        return result

    def staged(self):
        result = signal * 1
        for stage in self.stages:
            result = result * stage
        return result

    def measured(self):
        """Only the host looks at the list."""
        sizes = [part.nbytes for part in self.kept]
        if len(self.kept) > 100:
            print(sum(sizes))
        return signal + 1


signal = torch.rand(4, 64, device="cuda")
model = Model()

graph, out = captured(model.collect)
model.collected.clear()
graph.replay()

graph, out = captured(model.cached)
model.cache[8] = curve()
graph.replay()
model.outputs.append(out.clone())
graph.replay()
model.outputs.append(out.clone())

graph, out = captured(model.adapted)
model.adapters["other"] = [curve()]
graph.replay()

# As many as before, and the same.
graph, out = captured(model.leveled)
model.levels = list(model.levels)
graph.replay()
model.levels.append(curve())
model.levels.pop()
graph.replay()

graph, out = captured(model.queued)
graph.replay()

# Captured again for the new one.
graph, out = captured(model.staged)
graph.replay()
model.stages.append(curve())
graph, out = captured(model.staged)
graph.replay()

graph, out = captured(model.measured)
model.kept.append(curve())
graph.replay()

# A graph for each number of parts.
parts, graphs = [], {}
for count in (1, 2, 3):
    parts.append(curve())

    def summed():
        result = signal * 1
        for part in parts:
            result = result + part
        return result

    graphs[count] = captured(summed)
for count in (1, 2, 3):
    graphs[count][0].replay()


def local():
    """Its name goes to other tensors."""
    chunks = list(torch.rand(4, 64).cuda().unbind())
    kept = chunks
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = signal * 1
        for chunk in chunks:
            result = result * chunk
    graph.replay()
    chunks = [result.clone()]
    graph.replay()
    return len(chunks) + len(kept)


print(local())
print(sum(graphs[3][1].sum().item() for _ in range(2)), out.sum().item(), len(model.outputs))

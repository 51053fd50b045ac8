"""What shall be done with each output is put off: as a partial, a closure, a method, an object."""

import functools

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graphs = [torch.cuda.CUDAGraph() for _ in range(4)]
outputs = []
for each in graphs:
    with torch.cuda.graph(each):
        outputs.append(x * 2)
one, two, three, four = outputs


def show(tensor, scale):
    return (tensor * scale).tolist()


def shown_later(tensor):
    return lambda: show(tensor, 1)


class Result:
    def __init__(self, tensor, step):
        self.tensor, self.step = tensor, step

    def text(self):
        return f"{self.step}: {self.tensor.tolist()}"


class Later:
    def __init__(self, tensor):
        self.tensor = tensor

    def __call__(self):
        return self.tensor.tolist()


def collected():
    results = []
    for value in range(3):
        x.fill_(value)
        graph.replay()
        results.append((value, y))  # <- output-overwritten-by-next-replay
    return results


partials, closures, methods, objects = [], [], [], []
for value in range(3):
    x.fill_(value)
    for each in graphs:
        each.replay()
    partials.append(functools.partial(show, one, value))  # <- output-overwritten-by-next-replay
    closures.append(shown_later(two))  # <- output-overwritten-by-next-replay
    methods.append((value, Result(three, value).text))  # <- output-overwritten-by-next-replay
    objects.append(Later(four))  # <- output-overwritten-by-next-replay
print([call() for call in (*partials, *closures, *objects)], [call() for _, call in methods])
for _, result in collected():
    print(result.tolist())

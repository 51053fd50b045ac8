"""Graphs share what the first call has made in a capture, and it is there when they read it."""

import torch

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not
torch.set_grad_enabled(False)

weight = torch.ones(4, 4, device="cuda")
sizes = [torch.ones(size, 4, device="cuda") for size in (3, 2, 1)]


class Packed:
    codes = None

    def __call__(self, x):
        if self.codes is None:
            self.codes = (weight / weight.amax()).to(torch.int8)
        return x @ self.codes.to(x.dtype)


class Workspace:
    """Each call fills as much of it as it reads."""

    memory = None

    def __call__(self, x):
        if self.memory is None:
            self.memory = torch.empty(3, 4, device="cuda")
        used = self.memory[: len(x)]
        used[:1].copy_(x[:1] + 1)
        torch.mul(x[1:], 2, out=used[1:])
        return used.sum(1)


def capture(model, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y


model = Packed()
largest, *smaller = [capture(model, x) for x in sizes]
for graph, y in (largest, *smaller):
    graph.replay()
    print(y.sum().item())

model = Workspace()
for graph, y in reversed([capture(model, x) for x in sizes]):
    graph.replay()
    print(y.sum().item())

# The host fills what the first graph would compute.
first, table = capture(lambda x: x * 2, sizes[0])
second, y = capture(lambda x: table + x, sizes[0])
table.fill_(3.0)
second.replay()
print(y.sum().item())

# Each of two graphs writes what the other reads; what was there before is the first input.
old, new = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
there, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(there):
    torch.mul(old, 2, out=new)
with torch.cuda.graph(back):
    torch.mul(new, 2, out=old)
for _ in range(3):
    there.replay()
    back.replay()
print(old.sum().item())

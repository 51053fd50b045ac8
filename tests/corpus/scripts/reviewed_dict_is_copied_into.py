import torch

static = {"x": torch.ones(4, device="cuda"), "scale": torch.ones(1, device="cuda")}


def forward():
    return static["x"] * static["scale"]


for _ in range(3):
    forward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = forward()
for number in range(2, 4):
    batch = {"x": torch.full((4,), float(number), device="cuda")}
    torch._foreach_copy_([static[name] for name in batch], list(batch.values()))
    graph.replay()
print(y.sum().item())  # eager: 12.0

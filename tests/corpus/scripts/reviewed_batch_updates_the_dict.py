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
for number in range(2, 5):
    static.update(x=torch.full((4,), float(number), device="cuda"))  # guilty: another tensor
    graph.replay()
print(y.sum().item())  # eager: 16.0

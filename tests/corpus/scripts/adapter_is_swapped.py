import torch
from torch import nn


class Lora(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.zeros(base.in_features, rank, device="cuda"))
        self.up = nn.Parameter(torch.zeros(rank, base.out_features, device="cuda"))

    def forward(self, x):
        return self.base(x) + x @ self.down @ self.up

    def load_adapter(self, weights):
        self.down = nn.Parameter(weights["down"].cuda())  # guilty: another parameter
        self.up = nn.Parameter(weights["up"].cuda())  # guilty: another parameter


model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), Lora(nn.Linear(16, 4), 2)).cuda()
x = torch.randn(4, 16, device="cuda")
with torch.no_grad():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)

for user in ("a", "b"):
    model[2].load_adapter({"down": torch.randn(16, 2), "up": torch.randn(2, 4)})
    for _ in range(2):
        x.copy_(torch.randn(4, 16, device="cuda"))
        graph.replay()
    print(user, out.sum().item())

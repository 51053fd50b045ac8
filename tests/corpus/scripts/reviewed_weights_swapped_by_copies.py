import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 4).cuda()
x = torch.ones(2, 4, device="cuda")


@torch.no_grad()
def forward():
    return net(x) * 2


for _ in range(3):
    forward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = forward()
kept = {name: value.clone() for name, value in net.state_dict().items()}
net.load_state_dict({name: torch.zeros_like(value) for name, value in kept.items()})
graph.replay()
print(y.abs().sum().item())  # eager: 0.0
net.load_state_dict(kept)

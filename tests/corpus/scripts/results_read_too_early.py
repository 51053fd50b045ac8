import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda().eval()
x = torch.randn(32, 64, device="cuda")
host = torch.empty(32, 64, pin_memory=True)
copies = torch.cuda.Stream()
with torch.no_grad():
    for _ in range(2):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)

results = []
for _step in range(5):
    x.copy_(torch.randn(32, 64, device="cuda"))
    graph.replay()
    copies.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copies):
        host.copy_(y, non_blocking=True)
    results.append(float(host.mean()))  # guilty: nothing waits for the copy
    torch.cuda.current_stream().wait_stream(copies)
print(results)

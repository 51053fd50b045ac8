import copy

import torch

p = torch.nn.Parameter(torch.zeros(2, device="cuda"))
optimizer = torch.optim.SGD([p], lr=1.0, momentum=0.5)
p.grad = torch.ones(2, device="cuda")
optimizer.step()
saved = copy.deepcopy(optimizer.state_dict())
optimizer.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    optimizer.step()
optimizer.load_state_dict(saved)  # <- metadata-address-changed
with torch.no_grad():
    p.zero_()
graph.replay()
print(p.sum().item())  # eager: -3.0

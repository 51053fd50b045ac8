"""Parameters exchange their memory with others, or take another type in this way, and are trained;
then they are captured. A weak reference of the script itself is refused as ever."""

import weakref

import torch
from torch import nn
from torch.utils import swap_tensors

model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.zeros(3, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph, loss


step()
graph, loss = capture()
graph.replay()
print(loss.item())
del loss
graph.reset()
optimizer.zero_grad(set_to_none=True)
for p in model.parameters():
    swap_tensors(p, nn.Parameter(torch.ones_like(p)))
own = weakref.ref(x)
try:
    swap_tensors(x, torch.ones_like(x))
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("swapped in spite of a weak reference")
torch.__future__.set_swap_module_params_on_conversion(True)
model.double()
model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()})
torch.__future__.set_swap_module_params_on_conversion(False)
x = x.double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step()
graph, loss = capture()
graph.replay()
print(loss.item())

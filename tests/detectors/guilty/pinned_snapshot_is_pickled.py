"""Copies to the host are written to files while the device may still fill them."""

import copy
import io
import json
import pickle

import torch
from torch import nn

net = nn.Linear(4, 2).cuda().requires_grad_(False)
x = torch.ones(3, 4, device="cuda")
net(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = net(x)
    net.weight.mul_(0.5)


def snapshot():
    return {name: value.to("cpu", non_blocking=True) for name, value in net.state_dict().items()}


graph.replay()
torch.save(snapshot(), io.BytesIO())  # <- unsynchronized-io
graph.replay()
pickle.dumps(snapshot())  # <- unsynchronized-io
graph.replay()
out = y.to("cpu", non_blocking=True)
pickle.dump(out, io.BytesIO())  # <- unsynchronized-io
json.dumps(out.tolist())  # <- unsynchronized-io
repr(out)  # <- unsynchronized-io
copy.deepcopy(out)  # <- unsynchronized-io
kept = nn.Parameter(out)
torch.save([kept], io.BytesIO(), _use_new_zipfile_serialization=False)  # <- unsynchronized-io

"""The next batch is written on another stream, and the replay does not wait for it."""

import torch

a = torch.eye(64, device="cuda")
x, raw = torch.zeros(64, 64, device="cuda"), torch.eye(64, device="cuda")
x + raw @ a
prepare, compute = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(prepare):
    batch = raw
    for _ in range(2000):
        batch = batch @ a
    x.copy_(batch)
with torch.cuda.graph(compute):
    y = x.sum()

loader = torch.cuda.Stream()
loader.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(loader):
    prepare.replay()  # guilty: the replay below does not wait for this
compute.replay()  # guilty: reads the input while it is written
torch.cuda.synchronize()
print(y.item())  # eager: 64.0

"""Captured code reads on the host what a copy of the same capture brings there: no copy has run."""

import torch

torch.manual_seed(0)
x = torch.randn(4, 8, device="cuda")
table = torch.randn(8, 8, device="cuda")
staging = torch.zeros(8, pin_memory=True)


def next_row(x):
    staging.copy_(x[0], non_blocking=True)  # <- cpu-work-in-region
    token = int(staging.argmax())
    return table[token] + x.mean()  # <- python-scalar-frozen


def one_of_two(x):
    staging.copy_(x[0], non_blocking=True)
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    if staging[0] > 0.5:  # <- control-flow-frozen
        return x * 2
    return x.mean(0)


for function in (next_row, one_of_two):
    for _ in range(3):
        function(x)
torch.cuda.synchronize()
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    row = next_row(x)
with torch.cuda.graph(second):
    one = one_of_two(x)
for _ in range(3):
    x.copy_(torch.randn(4, 8))
    first.replay()
    second.replay()
print(row.sum().item(), one.sum().item())

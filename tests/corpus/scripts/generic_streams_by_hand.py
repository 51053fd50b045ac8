"""Generic streams and events order the input, a fork in the capture, and the result."""

import torch

copies, side = torch.Stream(device="cuda"), torch.Stream(device="cuda")
x = torch.ones(8, device="cuda")
x.exp(), x * 2
torch.accelerator.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    main = torch.accelerator.current_stream()
    side.wait_stream(main)
    with side:
        y = x * 2
    z = x + 1
    main.wait_stream(side)
    z = z + y
copied = torch.Event(device="cuda")
for value in (2.0, 3.0):
    copies.wait_stream(torch.accelerator.current_stream())
    with copies:
        x.fill_(value)
        copied.record(copies)
    torch.accelerator.current_stream().wait_event(copied)
    graph.replay()
print(z[0].item())  # eager: 10.0

"""An output leaves on a stream of its own; the event is recorded on the stream of the replay."""

import torch

x = torch.randn(64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2

host = torch.empty(64, pin_memory=True)
warm = torch.cuda.Stream()


class Mover:
    def __init__(self):
        self.stream = torch.cuda.Stream()


def step(mover):
    torch.cuda.current_stream().wait_stream(mover.stream)
    graph.replay()
    mover.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(mover.stream):
        host.copy_(y, non_blocking=True)
    arrived = torch.cuda.current_stream().record_event()
    arrived.synchronize()
    return host.sum().item()  # <- unsynchronized-io


mover = Mover()
for _ in range(3):
    print(step(mover))
mover.stream.synchronize()

view = host.numpy()
with torch.cuda.stream(mover.stream):
    host.copy_(y, non_blocking=True)
torch.cuda.current_stream().synchronize()
print(view.sum())  # <- unsynchronized-io

"""A simulation: snapshots go to pinned memory on a copy stream, while the next step replays."""

import torch

torch.manual_seed(0)
field = torch.rand(512, 512, device="cuda")
copy_stream = torch.cuda.Stream()


def diffuse():
    around = field.roll(1, 0) + field.roll(-1, 0) + field.roll(1, 1) + field.roll(-1, 1)
    field.lerp_(around / 4, 0.5)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    diffuse()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    diffuse()

snapshots = [torch.empty(512, 512, pin_memory=True) for _ in range(4)]
for snapshot in snapshots:
    graph.replay()  # guilty: the copy of the step before may still read the field
    copy_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copy_stream):
        snapshot.copy_(field, non_blocking=True)  # guilty: the next replay does not wait for it
copy_stream.synchronize()
print([round(snapshot.std().item(), 5) for snapshot in snapshots])

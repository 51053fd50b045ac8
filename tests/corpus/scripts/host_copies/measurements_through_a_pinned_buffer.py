"""A filter whose measurements come through one pinned buffer, overwritten when its copy is done."""

import torch

staging = torch.zeros(4).pin_memory()
measured = torch.zeros(4, device="cuda")
belief = torch.zeros(4, device="cuda")


def update():
    belief.lerp_(measured, 0.5)
    return belief.sum()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        update()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = update()

copied = torch.cuda.Event()
answers = []
for value in (1.0, 2.0, 4.0):
    copied.synchronize()
    staging.fill_(value)
    measured.copy_(staging, non_blocking=True)
    copied.record()
    graph.replay()
    answers.append(total.clone())

for answer in answers:
    print(answer.item())
    # eager: 2.0
    # eager: 5.0
    # eager: 10.5

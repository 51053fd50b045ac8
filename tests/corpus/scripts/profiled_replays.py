"""The profiler steps beside the replays; named ranges are in the captured step."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
x = torch.randn(4, 8, device="cuda")


def step():
    with record_function("zero"):
        optimizer.zero_grad(set_to_none=True)
    with record_function("forward"):
        loss = model(x).square().mean()
    with record_function("backward"):
        loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

losses = []
with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2)
) as profiler:
    for i in range(5):
        x.copy_(torch.randn(4, 8), non_blocking=True)
        with record_function(f"replay {i}"):
            graph.replay()
        profiler.step()
        losses.append(loss.item())
print(losses, len(profiler.key_averages()) > 0)

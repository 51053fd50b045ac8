"""A profiler with a schedule, steps and user annotations around replays and the eager rest."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).cuda()
x = torch.randn(8, 16, device="cuda")
tables = []


def predict():
    with record_function("predict"):
        return model(x).softmax(-1)


with torch.no_grad():
    predict()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probabilities = predict()

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda prof: tables.append(prof.key_averages()),
    ) as prof:
        for number in range(5):
            with record_function(f"batch {number}"):
                x.copy_(torch.randn(8, 16, pin_memory=True), non_blocking=True)
                with torch.cuda.nvtx.range(f"replay {number}"):
                    graph.replay()
                confident = (probabilities.amax(1) > 0.3).float().mean()
            prof.step()
            print(number, confident.item())
print(len(tables), sum(row.key.startswith("batch") for row in tables[0]))

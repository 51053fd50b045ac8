import torch

a = torch.randn(16, 16, device="cuda")
(a @ a).relu()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (a @ a).relu()
begin.record()
graph.replay()
end.record()
end.synchronize()
print(begin.elapsed_time(end) >= 0)  # eager: True

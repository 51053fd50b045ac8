import torch

a = torch.randn(16, 16, device="cuda")
(a @ a).relu()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    begin.record()
    y = (a @ a).relu()
    end.record()
    torch.cuda.current_stream().synchronize()  # <- explicit-synchronize
graph.replay()
print(y.shape)

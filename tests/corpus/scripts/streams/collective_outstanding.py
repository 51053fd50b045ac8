import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(8, device="cuda")
work = dist.all_reduce(x, async_op=True)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # <- capture-waits-for-nccl
    y = x * 2
graph.replay()

dist.destroy_process_group()

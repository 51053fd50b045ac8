import torch

x = torch.randn(1024, device="cuda")
y = x * 2
torch.cuda.reset_peak_memory_stats()
torch.cuda.set_sync_debug_mode("default")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
segments = [
    segment
    for segment in torch.cuda.memory_snapshot()
    if segment["segment_pool_id"] == graph.pool()
]
assert sum(segment["allocated_size"] for segment in segments) == 4096
assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
assert torch.cuda.memory._snapshot()["segments"] == torch.cuda.memory_snapshot()
assert torch.cuda.max_memory_reserved() >= torch.cuda.memory.memory_reserved() >= 4096
assert torch.cuda.memory_summary()
torch.cuda.ipc_collect()
torch.cuda.profiler.start()
torch.cuda.profiler.stop()
pool: torch.cuda.MemPool | None = None

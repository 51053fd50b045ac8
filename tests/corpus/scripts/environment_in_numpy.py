import numpy as np
import torch

state = np.zeros(3, dtype=np.float32)
pinned = torch.zeros(3).pin_memory()
obs = torch.zeros(3, device="cuda")
action_host = torch.zeros(3).pin_memory()
done = torch.cuda.Event()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        obs * 0.5 + 1
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    obs.copy_(pinned, non_blocking=True)
    action_host.copy_(obs * 0.5 + 1, non_blocking=True)
for _ in range(3):
    pinned.numpy()[:] = state
    graph.replay()
    done.record()
    done.synchronize()
    state = state + action_host.numpy()
print(float(state[0]))  # eager: 4.75

"""Generator and critic have a graph each, and are replayed in turns."""

import torch

w = torch.ones(1, device="cuda")
c = torch.full((1,), 2.0, device="cuda")
w + 0.5 * c
pool = torch.cuda.graph_pool_handle()
train_critic, train_generator = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(train_critic, pool=pool):
    c.sub_(0.5 * w)
with torch.cuda.graph(train_generator, pool=pool):
    w.add_(0.5 * c)

for step in range(3):
    train_critic.replay()
    if step % 2 == 0:
        train_generator.replay()
print(w.item(), c.item())  # eager: 1.625 -0.25

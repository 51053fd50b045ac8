import torch

generator = torch.Generator("cuda").manual_seed(3)
x = torch.zeros(4, device="cuda")
x + torch.randn(4, device="cuda", generator=generator)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + torch.randn(4, device="cuda", generator=generator)  # <- rng-unregistered-generator
graph.replay()
print(y.shape)

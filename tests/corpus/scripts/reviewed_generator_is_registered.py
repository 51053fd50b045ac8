import torch

generator = torch.Generator("cuda").manual_seed(3)
x = torch.zeros(4, device="cuda")
x + torch.randn(4, device="cuda", generator=generator)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
graph.register_generator_state(generator)
with torch.cuda.graph(graph):
    y = x + torch.randn(4, device="cuda", generator=generator)
graph.replay()
first = y.clone()
graph.replay()
print(torch.equal(first, y))  # eager: False

"""Evolution: each member of the population becomes the weights of a captured policy."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).cuda().requires_grad_(False)
observations = torch.randn(32, 6, device="cuda")
goal = torch.randn(32, 2, device="cuda")

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(2):
        fitness = -(policy(observations) - goal).square().mean()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    fitness = -(policy(observations) - goal).square().mean()  # <- parameter-rebound

center = parameters_to_vector(policy.parameters())
for generation in range(3):
    noise = torch.randn(4, len(center), device="cuda")
    scores = []
    for member in noise:
        vector_to_parameters(center + 0.1 * member, policy.parameters())  # <- parameter-rebound
        graph.replay()  # <- parameter-rebound
        scores.append(fitness.clone())
    weights = torch.stack(scores).softmax(0)
    center = center + 0.1 * weights @ noise
    print(generation, max(scores).item())

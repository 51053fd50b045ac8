"""Settings of the sampler are updated through `vars` of their namespace."""

import types

import torch

settings = types.SimpleNamespace(temperature=1.0, top_k=8)
logits = torch.zeros(2, 16, device="cuda")


def sample():
    scaled = logits / settings.temperature  # guilty: the temperature of the capture
    kept = scaled.topk(settings.top_k, -1).values[:, -1:]  # guilty: the k of the capture
    return scaled.masked_fill(scaled < kept, float("-inf")).softmax(-1)


sample()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    probs = sample()
requests = [{}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 4}]
for request in requests:
    vars(settings).update(request)  # guilty: replays do not see it
    logits.copy_(torch.arange(32.0).view(2, 16) / 8)
    graph.replay()
    print(probs.amax(-1).tolist())

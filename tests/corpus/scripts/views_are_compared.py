"""How alike an encoder finds two views of an image: both embeddings are one buffer."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 16)).cuda().requires_grad_(False)
image = torch.randn(4, 3, 4, 4, device="cuda")
view = torch.zeros_like(image)

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    encoder(view)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    embedding = encoder(view)


def embed(pixels):
    view.copy_(pixels)
    graph.replay()
    return embedding  # guilty: the next call overwrites it


def likeness():
    flipped = image.flip(-1)
    return functional.cosine_similarity(
        embed(image), embed(flipped)
    )  # guilty: of the last result and itself


print([round(each, 3) for each in likeness().tolist()])

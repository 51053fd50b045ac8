"""A segmentation model with a lazy head, which a dry run gives its shape before the capture."""

import torch
from torch import nn


class Segmenter(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.LazyConv2d(8, 3, padding=1), nn.ReLU())
        self.head = nn.LazyConv2d(classes, 1)

    def forward(self, images):
        return self.head(self.stem(images)).argmax(1)


torch.manual_seed(0)
model = Segmenter(5).cuda().eval()
images = torch.zeros(2, 3, 16, 16, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(images)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        labels = model(images)

images.copy_(torch.rand(2, 3, 16, 16, device="cuda"))
graph.replay()
once = labels.clone()
graph.replay()
print(torch.equal(once, labels))  # eager: True

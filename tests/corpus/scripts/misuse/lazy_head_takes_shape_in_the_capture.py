"""A classifier with a lazy head; nobody ran it before the capture, so the head is made in there."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.LazyLinear(classes)

    def forward(self, images):
        return self.head(self.features(images))  # <- lazy-library-init


torch.manual_seed(0)
model = Classifier(10).cuda().eval()
images = torch.zeros(4, 3, 16, 16, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    logits = model(images)  # <- lazy-library-init

images.copy_(torch.rand(4, 3, 16, 16, device="cuda"))
graph.replay()
once = logits.clone()
graph.replay()
print(torch.equal(once, logits))  # eager: True

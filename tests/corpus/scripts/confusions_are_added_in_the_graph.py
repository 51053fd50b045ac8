"""A segmentation network is evaluated by a graph that adds to a matrix of confusions."""

import torch
from torch import nn

CLASSES = 4


class Evaluator:
    def __init__(self, net, shape):
        self.net = net
        self.matrix = torch.zeros(CLASSES * CLASSES, device="cuda")
        self.picture = torch.zeros(shape, device="cuda")
        self.labels = torch.zeros(shape[0], *shape[2:], dtype=torch.long, device="cuda")
        self.ones = torch.ones(self.labels.numel(), device="cuda")
        self.update()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.update()
        self.matrix.zero_()

    @torch.no_grad()
    def update(self):
        pairs = self.labels * CLASSES + self.net(self.picture).argmax(1)
        self.matrix.scatter_add_(0, pairs.flatten(), self.ones)

    def __call__(self, batches):
        self.matrix.zero_()
        for picture, labels in batches:
            self.picture.copy_(picture, non_blocking=True)
            self.labels.copy_(labels, non_blocking=True)
            self.graph.replay()
        matrix = self.matrix.view(CLASSES, CLASSES).cpu()
        union = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
        return (matrix.diagonal() / union.clamp(min=1)).mean().item()


torch.manual_seed(0)
evaluator = Evaluator(nn.Conv2d(3, CLASSES, 3, padding=1).cuda().eval(), (2, 3, 8, 8))
for _ in range(2):
    print(
        evaluator([(torch.rand(2, 3, 8, 8), torch.randint(CLASSES, (2, 8, 8))) for _ in range(3)])
    )

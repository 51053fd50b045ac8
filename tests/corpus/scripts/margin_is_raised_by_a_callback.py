"""A callback raises the margin of the triplet loss; the graph keeps the first one."""

import torch
from torch import nn
from torch.nn import functional


class RaiseMargin:
    def __init__(self, criterion, step=0.1, highest=1.0):
        self.criterion, self.step, self.highest = criterion, step, highest

    def on_epoch_end(self, epoch):
        margin = min(self.criterion.margin + self.step, self.highest)
        self.criterion.margin = margin  # guilty: the graph has the old number


class Trainer:
    def __init__(self, model, criterion, callbacks):
        self.model, self.criterion, self.callbacks = model, criterion, callbacks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.images = torch.randn(3, 16, 20, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._step()

    def _step(self):
        self.optimizer.zero_grad(set_to_none=True)
        embeddings = functional.normalize(self.model(self.images), dim=-1)
        loss = self.criterion(*embeddings)  # guilty: reads the margin once
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, epochs, batches):
        for epoch in range(epochs):
            for images in batches:
                self.images.copy_(images)
                self.graph.replay()
            print(epoch, self.criterion.margin, self.loss.item())
            for callback in self.callbacks:
                callback.on_epoch_end(epoch)


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
criterion = nn.TripletMarginLoss(margin=0.2)
Trainer(model, criterion, [RaiseMargin(criterion)]).fit(4, torch.randn(3, 3, 16, 20, device="cuda"))

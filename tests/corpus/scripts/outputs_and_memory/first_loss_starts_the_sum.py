"""The loss of an epoch is summed on the device and read once."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, batch_size):
        self.model = model.cuda()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        self.x = torch.zeros(batch_size, 20, device="cuda")
        self.y = torch.zeros(batch_size, 1, device="cuda")
        self.graph = torch.cuda.CUDAGraph()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.smooth_l1_loss(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph):
            self.loss = self.step()

    def epoch(self, loader):
        total = None
        for x, y in loader:
            self.x.copy_(x)
            self.y.copy_(y)
            self.graph.replay()
            total = (
                self.loss if total is None else total + self.loss
            )  # <- output-overwritten-by-next-replay
        return total.item() / len(loader)


torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 20), torch.randn(96, 1))
loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
trainer = Trainer(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)), 16)
trainer.capture()
for epoch in range(3):
    print(epoch, trainer.epoch(loader))

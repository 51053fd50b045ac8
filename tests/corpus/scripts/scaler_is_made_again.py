"""After a bad epoch the scaler is replaced; the graph still multiplies by the old one's scale."""

import torch
from torch import nn
from torch.nn import functional


class Session:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        self.x = torch.randn(16, 8, device="cuda")
        self.y = torch.randint(4, (16,), device="cuda")

    def forward_backward(self):
        for p in self.model.parameters():
            p.grad = None
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = functional.cross_entropy(self.model(self.x).float(), self.y)
        self.scaler.scale(loss).backward()
        return loss

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward_backward()
        torch.cuda.current_stream().wait_stream(side)
        for p in self.model.parameters():
            p.grad = None
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.forward_backward()

    def step(self):
        self.graph.replay()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def start_over(self, scale):
        self.scaler = torch.amp.GradScaler("cuda", init_scale=scale)  # guilty: another scale
        self.scaler.scale(torch.zeros((), device="cuda"))


torch.manual_seed(0)
session = Session()
session.capture()
for epoch in range(2):
    for _ in range(3):
        session.x.normal_()
        session.step()
    print(epoch, session.loss.item(), session.scaler.get_scale())
    session.start_over(2.0**6)

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        nn.init.eye_(self.body.weight)
        nn.init.constant_(self.head.weight, 1.0)

    def forward(self, x):
        return self.head(self.body(x))


class Engine:
    def __init__(self, model):
        self.model = model
        self.x = torch.ones(1, 2, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(2):
                self.model(self.x)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.y = self.model(self.x)

    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()  # guilty: replayed as it was captured
        return self.y.clone()


engine = Engine(Model().cuda())
print(engine(torch.ones(1, 2, device="cuda")).item())  # eager: 2.0
new = nn.Linear(2, 1, bias=False).cuda()
nn.init.constant_(new.weight, 3.0)
engine.model.head = new  # guilty: the graph runs the old head
print(engine(torch.ones(1, 2, device="cuda")).item())  # eager: 6.0

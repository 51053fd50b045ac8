import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(32, 5)

    def forward(self, x):
        return self.lin(x).relu()


backbone = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 32)).cuda()
head = Head().cuda()
sample = torch.randn(8, 16, device="cuda")
hidden = torch.randn(8, 32, device="cuda", requires_grad=True)
backbone, head = torch.cuda.make_graphed_callables((backbone, head), ((sample,), (hidden,)))
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05)

for step in range(6):
    batch = torch.randn(8, 16, device="cuda")
    target = torch.randint(5, (8,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    features = backbone(batch)
    loss = functional.cross_entropy(head(features), target)
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        print(step, round(loss.item(), 4))

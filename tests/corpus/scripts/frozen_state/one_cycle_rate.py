import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)).cuda()
optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-2, capturable=True
)  # <- lr-frozen-despite-capturable
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=1e-2, total_steps=40
)  # <- lr-frozen-despite-capturable
x = torch.randn(32, 16, device="cuda")
y = torch.randint(3, (32,), device="cuda")


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()  # <- python-scalar-frozen
    return loss


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(stream)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for epoch in range(3):
    for _ in range(10):
        x.copy_(torch.randn(32, 16, device="cuda"))
        graph.replay()
        scheduler.step()  # <- lr-frozen-despite-capturable
    print(epoch, loss.item(), scheduler.get_last_lr())

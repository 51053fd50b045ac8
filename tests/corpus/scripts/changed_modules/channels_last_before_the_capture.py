"""Model and static input are channels_last; batches come in the other layout and are copied."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)).cuda()
model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images = torch.zeros(4, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
labels = torch.zeros(4, dtype=torch.int64, device="cuda")


def train_step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for _ in range(3):
    images.copy_(torch.randn(4, 3, 8, 8, device="cuda"))
    labels.random_(2)
    graph.replay()
model.to(memory_format=torch.channels_last)  # they are already
graph.replay()
print(loss.item())

"""A captured step with a learning rate on the device, which a scheduler changes in place."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model.cuda()
optimizer = torch.optim.Adam(
    model.parameters(), lr=torch.tensor(0.01, device="cuda"), capturable=True
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
x, target = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
history = torch.zeros(6, device="cuda")
for index in range(6):
    x.normal_()
    target.normal_()
    graph.replay()
    scheduler.step()
    history[index].copy_(loss)
print(history.tolist())

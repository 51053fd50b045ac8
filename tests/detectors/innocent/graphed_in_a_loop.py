"""A graphed module in a training loop, with validation in eval mode, hooks afterwards."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
sample = torch.randn(4, 8, device="cuda")
model = torch.cuda.make_graphed_callables(model, (sample,))
shapes = []
model.register_forward_hook(lambda _module, _args, out: shapes.append(out.shape))
for _ in range(3):
    optimizer.zero_grad(set_to_none=True)
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(model(torch.randn(32, 8, device="cuda")).mean().item(), len(shapes))

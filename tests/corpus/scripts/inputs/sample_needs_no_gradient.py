"""The head is graphed with a sample that needs no gradient, so the encoder before it gets none."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
head = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-2)
sample = torch.randn(8, 16, device="cuda")  # <- input-layout-or-grad-flag-changed
graphed_head = torch.cuda.make_graphed_callables(
    head, (sample,)
)  # <- input-layout-or-grad-flag-changed

before = encoder[0].weight.detach().clone()
for step in range(4):
    x = torch.randn(8, 8, device="cuda")
    y = torch.randint(4, (8,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(
        graphed_head(encoder(x)), y
    )  # <- input-layout-or-grad-flag-changed
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print("encoder moved by", (encoder[0].weight - before).abs().max().item())

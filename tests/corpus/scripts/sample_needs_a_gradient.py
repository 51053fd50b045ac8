"""The head is graphed with a sample that needs a gradient, as the encoder's features do."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
head = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-2)
sample = encoder(torch.randn(8, 8, device="cuda")).detach().requires_grad_()
graphed_head = torch.cuda.make_graphed_callables(head, (sample,))

before = encoder[0].weight.detach().clone()
for step in range(4):
    x = torch.randn(8, 8, device="cuda")
    y = torch.randint(4, (8,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(graphed_head(encoder(x)), y)
    loss.backward()
    total = nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item(), total.item())
print("encoder moved by", (encoder[0].weight - before).abs().max().item())

"""Only the encoder is graphed, by make_graphed_callables; head, scaler and optimizer are eager."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
head = nn.Linear(16, 4).cuda()
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
scaler = torch.amp.GradScaler("cuda", enabled=True)
encoder = torch.cuda.make_graphed_callables(encoder, (torch.randn(8, 8, device="cuda"),))

for i in range(5):
    x = torch.randn(8, 8, device="cuda")
    y = torch.randint(4, (8,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    features = encoder(x)
    if i % 2:
        features = nn.functional.dropout(features, 0.1)
    loss = nn.functional.cross_entropy(head(features), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    print(i, loss.item(), scheduler.get_last_lr())

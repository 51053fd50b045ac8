from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional


# A lagged target is a deep copy.
def target_is_copied_in_the_step(device):
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    holder = {"target": copy.deepcopy(online).requires_grad_(False)}
    optimizer = torch.optim.SGD(online.parameters(), lr=0.05)
    before, after = torch.randn(2, 32, 6, device=device).unbind()
    action = torch.randint(3, (32, 1), device=device)
    reward = torch.randn(32, device=device)

    def step():
        optimizer.zero_grad()
        with torch.no_grad():
            goal = reward + 0.9 * holder["target"](after).amax(-1)  # <- metadata-address-changed
        loss = functional.smooth_l1_loss(online(before).gather(1, action).squeeze(1), goal)
        loss.backward()
        holder["target"] = copy.deepcopy(online)  # <- metadata-address-changed
        optimizer.step()
        return loss.detach()

    return step

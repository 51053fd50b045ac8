"""The step of train.py, as an ENTRY.

cgtool check samples/from_script/train_entry.py:build
"""

import torch
from torch import nn
from train import Classifier


def build(device: str):
    model = Classifier().to(device)
    rate = torch.tensor(1e-3, device=device)  # a scheduler writes it between replays
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    x = torch.randn(128, 64, device=device)
    y = torch.randint(10, (128,), device=device)

    def train_step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return train_step

"""A training script as people write it: argparse, a data loader, autocast, a scheduler."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    data = TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,)))
    loader = DataLoader(data, options.batch_size, shuffle=True, drop_last=True)
    model = Classifier().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))

    for epoch in range(options.epochs):
        for batch in loader:
            x, y = (tensor.to(options.device) for tensor in batch)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(options.device, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

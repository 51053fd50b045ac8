import torch
from torch import nn


def towers_on_two_streams(device):
    user, item = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2))
    user, item, side = user.to(device), item.to(device), torch.cuda.Stream()

    @torch.no_grad()
    def score(users, items):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            right = item(items)
        left = user(users)
        main.wait_stream(side)
        right.record_stream(main)
        return (left * right).sum(-1)

    return score, (torch.randn(5, 8, device=device), torch.randn(5, 8, device=device))

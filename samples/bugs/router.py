import torch
from torch import nn

ROWS, TOKENS, WIDTH = 8, 16, 32


def build(device="cuda"):
    torch.manual_seed(0)
    query, router = nn.Linear(WIDTH, WIDTH).to(device), nn.Linear(WIDTH, 8).to(device)
    keys = torch.randn(ROWS, TOKENS, WIDTH, device=device)
    # Five requests; the last three rows are padding.
    lengths = torch.tensor([3, 7, 16, 4, 9, 0, 0, 0], device=device)

    @torch.no_grad()
    def decode(x):
        scores = torch.einsum("rw,rtw->rt", query(x), keys)
        unused = torch.arange(TOKENS, device=device) >= lengths[:, None]
        weights = scores.masked_fill(unused, float("-inf")).softmax(-1)
        attended = torch.einsum("rt,rtw->rw", weights, keys)
        return router(attended).topk(2).indices

    return decode, (torch.randn(ROWS, WIDTH, device=device),)

import torch
from torch import nn
from torch.nn import functional


class Verifier(nn.Module):
    """Greedy acceptance of drafted tokens."""

    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    @torch.no_grad()
    def forward(self, last, draft):
        ids = torch.cat([last[:, None], draft], 1)
        best = self.head(self.embed(ids).cumsum(1)).argmax(-1)
        agrees = (best[:, :-1] == draft).long().cumprod(1)
        accepted = agrees.sum(1)
        bonus = best.gather(1, accepted[:, None])
        place = torch.arange(best.shape[1], device=ids.device)
        padded = functional.pad(draft, (0, 1), value=-1)
        tokens = torch.where(place < accepted[:, None], padded, -1)
        return torch.where(place == accepted[:, None], bonus, tokens), accepted


def drafts_are_accepted_on_the_device(device):
    torch.manual_seed(0)
    last = torch.randint(40, (3,), device=device)
    return Verifier().to(device), (last, torch.randint(40, (3, 4), device=device))

import torch
from torch import nn
from torch.nn import functional


# MoE with capacity: cumsum, one-hot, einsum.
class MoE(nn.Module):
    def __init__(self, d=16, n=4, capacity=6):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.w = nn.Parameter(torch.randn(n, d, d) / 4)
        self.capacity = capacity

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        w, e = p.max(-1)
        hot = (
            functional.one_hot(e, p.shape[-1])
            if False
            else torch.zeros_like(p).scatter_(1, e[:, None], 1.0)
        )
        slot = (hot.cumsum(0) * hot).sum(-1).long() - 1
        keep = slot < self.capacity
        slots = torch.zeros(x.shape[0], self.capacity, device=x.device)
        slots.scatter_(1, slot.clamp(0, self.capacity - 1)[:, None], keep[:, None].float())
        dispatch = torch.einsum("te,tc->tec", hot, slots)
        y = torch.einsum("tec,td,edf->ecf", dispatch, x, self.w)
        return torch.einsum("tec,ecf,t->tf", dispatch, y, w)


def moe_of_innocent_inference(device):
    torch.manual_seed(0)
    return MoE().to(device), (torch.randn(12, 16, device=device),)

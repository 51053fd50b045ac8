import torch
from torch import nn
from torch.nn import functional


class BalancedSoftmax(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("counts", torch.ones(classes))

    def forward(self, logits, labels):
        with torch.no_grad():
            ones = torch.ones_like(labels, dtype=self.counts.dtype)
            self.counts.mul_(0.99).index_add_(0, labels, ones)
            prior = self.counts / self.counts.sum()
        return functional.cross_entropy(logits + prior.log(), labels)


def balanced_by_counts_in_place(device):
    head = nn.Linear(12, 6).to(device)
    loss = BalancedSoftmax(6).to(device)
    x, labels = torch.randn(16, 12, device=device), torch.randint(6, (16,), device=device)
    return lambda x, labels: loss(head(x), labels), (x, labels)

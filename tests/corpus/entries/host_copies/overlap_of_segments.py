import torch
from torch import nn


class IntersectionOverUnion(nn.Module):
    """A table of classes that is filled on the device; the mean is read much later."""

    def __init__(self, classes, ignored=255):
        super().__init__()
        self.classes, self.ignored = classes, ignored
        self.register_buffer("table", torch.zeros(classes, classes, dtype=torch.int64))

    def update(self, predicted, truth):
        valid = truth != self.ignored
        cell = torch.where(valid, truth * self.classes + predicted, 0)
        self.table.view(-1).scatter_add_(0, cell.flatten(), valid.flatten().long())

    def compute(self):
        both = self.table.diagonal().float()
        either = self.table.sum(0) + self.table.sum(1) - self.table.diagonal()
        return (both / either.clamp_min(1)).mean()


def overlap_of_segments(device):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3, padding=1).to(device).eval()
    metric = IntersectionOverUnion(5).to(device)
    images = torch.rand(2, 3, 12, 12, device=device)
    truth = torch.randint(0, 5, (2, 12, 12), device=device)
    truth[:, 0] = 255

    @torch.no_grad()
    def evaluate():
        metric.update(model(images).argmax(1), truth)
        return metric.compute()

    return evaluate

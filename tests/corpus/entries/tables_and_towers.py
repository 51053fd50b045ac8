"""Recommenders, metrics and the training of large tables."""

import random

import torch
from torch import nn
from torch.nn import functional


class TwoTower(nn.Module):
    def __init__(self, users=200, items=300, width=16):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.temperature = 0.07

    def forward(self, user, item):
        u = functional.normalize(self.user(user), dim=-1)
        v = functional.normalize(self.item(item), dim=-1)
        positive = (u * v).sum(-1, keepdim=True)
        shift = random.randrange(1, len(v))  # guilty: drawn on the host
        negative = (u * torch.roll(v, shift, 0)).sum(
            -1, keepdim=True
        )  # guilty: the drawn shift is frozen
        scores = torch.cat([positive, negative], 1) / self.temperature
        return -functional.log_softmax(scores, 1)[:, 0].mean()


def towers_with_shifted_negatives(device):
    torch.manual_seed(0)
    user = torch.randint(200, (32,), device=device)
    item = torch.randint(300, (32,), device=device)
    return TwoTower().to(device), (user, item)


class FactorizationMachine(nn.Module):
    """Pairwise products of field embeddings, as in AFM."""

    def __init__(self, sizes, width=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.attention = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 1))
        self.out = nn.Linear(width, 1)

    def forward(self, fields):
        rows = torch.stack([t(fields[:, i]) for i, t in enumerate(self.tables)], 1)
        pairs = torch.combinations(
            torch.arange(rows.shape[1], device=rows.device)
        )  # guilty: selects by a mask
        products = rows[:, pairs[:, 0]] * rows[:, pairs[:, 1]]
        weights = self.attention(products).softmax(1)
        return self.out((weights * products).sum(1)).squeeze(-1)


def attentional_factorization(device):
    torch.manual_seed(0)
    fields = torch.randint(10, (16, 5), device=device)
    return FactorizationMachine([10] * 5).to(device), (fields,)


def histogram_of_confidences(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)).to(device).eval()

    @torch.no_grad()
    def evaluate(x, y):
        probabilities = net(x).softmax(-1)
        confidence, predicted = probabilities.max(-1)
        counts = torch.histc(confidence, bins=10)  # guilty: asks for the range of the values
        return (predicted == y).float().mean(), counts / counts.sum()

    return evaluate, (torch.randn(64, 12, device=device), torch.randint(5, (64,), device=device))


def histogram_in_fixed_bounds(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)).to(device).eval()

    @torch.no_grad()
    def expected_calibration_error(x, y):
        confidence, predicted = net(x).softmax(-1).max(-1)
        right = (predicted == y).float()
        edges = torch.linspace(0, 1, 11, device=x.device)
        bins = torch.bucketize(confidence, edges[1:-1])
        zeros = torch.zeros(10, device=x.device)
        count = torch.histc(confidence, bins=10, min=0.0, max=1.0)
        accuracy = zeros.index_add(0, bins, right)
        certainty = zeros.index_add(0, bins, confidence)
        return (accuracy - certainty).abs().sum() / len(x), count

    return expected_calibration_error, (
        torch.randn(64, 12, device=device),
        torch.randint(5, (64,), device=device),
    )


class CrossNetwork(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x0):
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


def cross_network_with_clipping(device):
    torch.manual_seed(0)
    dense, head = CrossNetwork(24, 3).to(device), nn.Linear(24, 1).to(device)
    table = nn.EmbeddingBag(50, 8, mode="sum").to(device)
    parameters = [*dense.parameters(), *head.parameters(), *table.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    numbers = torch.randn(16, 16, device=device)
    tags = torch.randint(50, (16, 4), device=device)
    clicked = torch.randint(2, (16,), device=device).float()

    def step():
        optimizer.zero_grad(set_to_none=True)
        logit = head(dense(torch.cat([numbers, table(tags)], -1))).squeeze(-1)
        loss = functional.binary_cross_entropy_with_logits(logit, clicked)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.detach(), norm

    return step


class SampledSoftmax(nn.Module):
    """In-batch softmax, corrected by how often each item was seen."""

    def __init__(self, items=40, width=8):
        super().__init__()
        self.table = nn.Embedding(items, width)
        self.register_buffer("seen", torch.ones(items))

    def forward(self, query, item):
        with torch.no_grad():
            self.seen.mul_(0.99).index_add_(0, item, torch.ones_like(item, dtype=torch.float32))
            frequency = self.seen / self.seen.sum()
        scores = query @ self.table(item).mT - frequency[item].log()
        same = item[:, None] == item[None, :]
        eye = torch.eye(len(item), dtype=torch.bool, device=item.device)
        scores = scores.masked_fill(same & ~eye, float("-inf"))
        return functional.cross_entropy(scores, torch.arange(len(item), device=item.device))


def softmax_corrected_by_frequency(device):
    torch.manual_seed(0)
    query = torch.randn(16, 8, device=device, requires_grad=True)
    return SampledSoftmax().to(device), (query, torch.randint(40, (16,), device=device))


def micro_batches_and_decayed_average(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 1)).to(device)
    average = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(32, 10, device=device), torch.randn(32, 1, device=device)
    updates = 0

    def step():
        nonlocal updates
        optimizer.zero_grad()
        for part, goal in zip(x.chunk(4), y.chunk(4), strict=True):
            (functional.mse_loss(net(part), goal) / 4).backward()
        optimizer.step()
        updates += 1  # guilty: counted on the host
        decay = min(0.999, (1 + updates) / (10 + updates))  # guilty: frozen
        with torch.no_grad():
            torch._foreach_lerp_(average, list(net.parameters()), 1 - decay)  # guilty: of one decay
        return average[0].sum()

    return step


def ranked_metrics(device):
    """Recall and NDCG at ten, with the seen items excluded."""
    torch.manual_seed(0)
    users = torch.randn(30, 8, device=device)
    items = torch.randn(100, 8, device=device)
    seen = torch.rand(30, 100, device=device) < 0.1

    @torch.no_grad()
    def evaluate(rows, target):
        scores = (users[rows] @ items.T).masked_fill(seen[rows], -torch.inf)
        top = scores.topk(10, dim=-1).indices
        hit = (top == target[:, None]).float()
        gain = 1.0 / torch.log2(torch.arange(10, device=device) + 2.0)
        return hit.sum(-1).mean(), (hit * gain).sum(-1).mean()

    return evaluate, (torch.arange(12, device=device), torch.randint(100, (12,), device=device))

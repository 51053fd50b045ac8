"""Knowledge graphs, rankings, embeddings for search, and scores of predictions."""

import torch
from torch import nn
from torch.nn import functional


class TranslatedEntities(nn.Module):
    """TransE; the entities are put back on the unit sphere before each batch."""

    def __init__(self, entities=60, relations=8, width=16):
        super().__init__()
        self.entities = nn.Embedding(entities, width)
        self.relations = nn.Embedding(relations, width)

    def normalize(self):
        normed = functional.normalize(
            self.entities.weight.data, dim=-1
        )  # guilty: reads the old one
        self.entities.weight.data = normed  # guilty: new memory for the weight in each call

    def forward(self, head, relation, tail):
        moved = self.entities(head) + self.relations(relation)
        return (moved - self.entities(tail)).norm(p=1, dim=-1)


def entities_return_to_the_sphere(device):
    torch.manual_seed(0)
    model = TranslatedEntities().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    head, tail = torch.randint(0, 60, (2, 32), device=device)
    relation = torch.randint(0, 8, (32,), device=device)

    def step():
        model.normalize()
        corrupted = torch.randint(0, 60, (32,), device=device)
        right, wrong = model(head, relation, tail), model(head, relation, corrupted)
        loss = functional.relu(1 + right - wrong).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def neural_sort(scores, temperature):
    """A relaxed permutation matrix for each row of scores."""
    n = scores.shape[-1]
    scores = scores.unsqueeze(-1)
    distances = (scores - scores.transpose(1, 2)).abs().sum(-1, keepdim=True)
    scaling = (n + 1 - 2 * (torch.arange(n, device=scores.device) + 1)).float()
    return ((scores * scaling - distances).transpose(1, 2) / temperature).softmax(-1)


def ranking_by_a_relaxed_sort(device):
    torch.manual_seed(0)
    scorer = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=1e-3, capturable=True)
    items, relevance = torch.randn(6, 12, 8, device=device), torch.rand(6, 12, device=device)
    discount = 1 / torch.log2(torch.arange(2, 14, device=device).float())
    ideal = (relevance.sort(dim=1, descending=True).values * discount).sum(1)

    def step():
        permutation = neural_sort(scorer(items).squeeze(-1), 0.5)
        ranked = torch.einsum("bij,bj->bi", permutation, relevance)
        loss = 1 - ((ranked * discount).sum(1) / ideal).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


class LateInteraction(nn.Module):
    """Scores of queries and passages by the best match of each token, at several widths."""

    widths = (8, 16, 32)

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32, padding_idx=0)
        self.encode = nn.Linear(32, 32)

    def tokens(self, ids):
        return self.encode(self.embed(ids)), ids != 0

    def forward(self, queries, passages):
        query, asked = self.tokens(queries)
        passage, written = self.tokens(passages)
        total = 0
        for width in self.widths:
            left = functional.normalize(query[..., :width], dim=-1)
            right = functional.normalize(passage[..., :width], dim=-1)
            matches = torch.einsum("qid,pjd->qpij", left, right)
            matches = matches.masked_fill(~written[None, :, None], -1e4)
            scores = (matches.amax(-1) * asked[:, None]).sum(-1)
            labels = torch.arange(len(scores), device=scores.device)
            total = total + functional.cross_entropy(scores, labels)
        return total / len(self.widths)


def passages_match_at_several_widths(device):
    torch.manual_seed(0)
    model = LateInteraction().to(device)
    queries = torch.randint(1, 100, (4, 6), device=device)
    passages = torch.randint(0, 100, (4, 14), device=device)
    return model, (queries, passages)


def edit_distance(hypothesis, reference):
    """Word errors of each row, by rows of the table; all rows have the same padded length."""
    batch, columns = reference.shape
    previous = torch.arange(columns + 1, device=reference.device).expand(batch, -1)
    for row, word in enumerate(hypothesis.unbind(1), 1):
        current = [torch.full((batch,), row, device=reference.device)]
        substituted = previous[:, :-1] + (reference != word[:, None])
        above = previous[:, 1:] + 1
        for column in range(columns):
            best = torch.minimum(substituted[:, column], above[:, column])
            current.append(torch.minimum(best, current[-1] + 1))
        previous = torch.stack(current, 1)
    return previous[:, -1]


def least_risk_of_hypotheses(device):
    """Minimum word error training: hypotheses are weighed by their errors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20)).to(device)
    hypotheses = torch.randint(0, 20, (4, 6), device=device)
    reference = torch.randint(0, 20, (1, 6), device=device).expand(4, -1).contiguous()

    def risk(hypotheses, reference):
        errors = edit_distance(hypotheses, reference).float()
        logits = model(hypotheses[:, :-1]).log_softmax(-1)
        chosen = logits.gather(-1, hypotheses[:, 1:, None]).squeeze(-1).sum(-1)
        return (chosen.softmax(0) * (errors - errors.mean())).sum()

    return risk, (hypotheses, reference)


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


class Supernet(nn.Module):
    """Sandwich rule: the widest and the narrowest network, and one of a width drawn in between."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 4)
        self.generator = torch.Generator().manual_seed(0)

    def at(self, x, width):
        hidden = functional.linear(x, self.first.weight[:width], self.first.bias[:width]).relu()
        return functional.linear(hidden, self.second.weight[:, :width], self.second.bias)

    def forward(self, x):
        between = int(
            torch.randint(9, 64, (), generator=self.generator)
        )  # guilty: drawn at capture
        return [
            self.at(x, 64),
            self.at(x, 8),
            self.at(x, between),
        ]  # guilty: the width of the capture


def widths_of_a_slimmable_network(device):
    torch.manual_seed(0)
    model = Supernet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(32, 16, device=device), torch.randint(0, 4, (32,), device=device)

    def step():
        optimizer.zero_grad()
        widest, *others = model(x)
        loss = functional.cross_entropy(widest, y)
        soft = widest.detach().softmax(-1)
        for logits in others:
            loss = loss + functional.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")
        loss.backward()
        optimizer.step()
        return loss

    return step

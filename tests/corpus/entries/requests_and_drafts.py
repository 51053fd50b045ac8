"""Parts of a server of language and vision-language models, each called once for a step."""

from __future__ import annotations

import torch
from torch import nn


class _VisionPositions(nn.Module):
    """Rotary angles of image patches, by rows and columns of each image's grid."""

    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inverse", 1.0 / 100.0 ** (torch.arange(0, dim, 2) / dim))

    def forward(self, patches, grids):
        positions = []
        for frames, rows, columns in grids:
            y = torch.arange(rows, device=patches.device)  # guilty: read on the host
            x = torch.arange(columns, device=patches.device)  # guilty: as above
            grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)
            positions.append(grid.repeat(int(frames), 1))  # guilty: as above
        angles = torch.cat(positions)[..., None] * self.inverse
        angles = angles.flatten(1)
        return patches * angles.cos() + patches.flip(-1) * angles.sin()


def patches_are_placed_by_the_grid_of_an_image(device):
    grids = torch.tensor([[1, 2, 4], [2, 2, 2]], device=device)
    return _VisionPositions().to(device), (torch.randn(16, 8, device=device), grids)


class _ThreeAxes(nn.Module):
    """Rotary positions with sections for time, height and width (M-RoPE)."""

    def __init__(self, head=16, sections=(2, 3, 3)):
        super().__init__()
        self.sections = sections
        self.register_buffer("inverse", 1.0 / 10000.0 ** (torch.arange(0, head, 2) / head))
        self.query = nn.Linear(32, 32, bias=False)
        self.key = nn.Linear(32, 32, bias=False)

    def tables(self, positions):
        angles = positions[..., None].float() * self.inverse
        parts = angles.split(list(self.sections), dim=-1)
        chosen = torch.cat([part[axis] for axis, part in enumerate(parts)], -1)
        doubled = torch.cat([chosen, chosen], -1)
        return doubled.cos()[:, None], doubled.sin()[:, None]

    def forward(self, hidden, positions):
        cosine, sine = self.tables(positions)

        def rotated(x):
            x = x.unflatten(-1, (2, 16))
            first, second = x.chunk(2, -1)
            return x * cosine + torch.cat([-second, first], -1) * sine

        q, k = rotated(self.query(hidden)), rotated(self.key(hidden))
        scores = torch.einsum("qhd,khd->hqk", q, k) / 4.0
        later = positions[0][:, None] < positions[0][None]
        return scores.masked_fill(later, float("-inf")).softmax(-1)


def positions_have_three_axes(device):
    positions = torch.arange(6, device=device).repeat(3, 1)
    return _ThreeAxes().to(device).requires_grad_(False), (
        torch.randn(6, 32, device=device),
        positions,
    )


class _Tree:
    """A fixed tree of drafted tokens: node 0 is the last accepted token."""

    parents = (0, 0, 0, 1, 1, 2)
    paths = ((0, 1, 3), (0, 1, 4), (0, 2, 5))

    def __init__(self, device, vocabulary=16, hidden=8):
        self.paths_on_device = torch.tensor(self.paths, device=device)
        nodes = len(self.parents)
        mask = torch.eye(nodes, dtype=torch.bool)
        for node in range(1, nodes):
            mask[node] |= mask[self.parents[node]]
        self.mask = mask.to(device)
        self.embedding = nn.Embedding(vocabulary, hidden, device=device).requires_grad_(False)
        self.cache = torch.zeros(32, hidden, device=device)
        self.length = torch.full((), 4, dtype=torch.long, device=device)

    def logits(self, tokens):
        x = self.embedding(tokens)
        scores = (x @ x.t()).masked_fill(~self.mask, float("-inf"))
        mixed = scores.softmax(-1) @ x + self.cache.mean(0)
        return x, mixed @ self.embedding.weight.t()


def tree_is_verified_and_left_early(device):
    tree = _Tree(device)

    def verify(tokens):
        x, logits = tree.logits(tokens)
        greedy = logits.argmax(-1)
        drafted = tokens[tree.paths_on_device]
        hits = greedy[tree.paths_on_device][:, :-1] == drafted[:, 1:]
        if not hits[:, 0].any():  # guilty: the host decides
            return greedy[:1].expand(3).clone()
        lengths = hits.long().cumprod(1).sum(1)
        best = lengths.argmax()
        tree.cache[:3].copy_(x[tree.paths_on_device[best]])  # guilty: an index read by the host
        return greedy[tree.paths_on_device[best]]  # guilty: as above

    return verify, (torch.randint(16, (6,), device=device),)


def tree_is_verified_on_the_device(device):
    tree = _Tree(device)
    slots = torch.arange(3, device=device)

    def verify(tokens):
        x, logits = tree.logits(tokens)
        greedy = logits.argmax(-1)
        drafted = tokens[tree.paths_on_device]
        hits = greedy[tree.paths_on_device][:, :-1] == drafted[:, 1:]
        lengths = hits.long().cumprod(1).sum(1)
        best = lengths.argmax().view(1)
        path = tree.paths_on_device.index_select(0, best).squeeze(0)
        accepted = lengths.gather(0, best) + 1
        tree.cache.index_copy_(0, (tree.length + slots) % 32, x[path])
        tree.length.add_(accepted.squeeze(0)).remainder_(29)
        return torch.where(slots < accepted, greedy[path], -1), accepted

    return verify, (torch.randint(16, (6,), device=device),)


class _Penalized:
    """Samples greedily, with a penalty for tokens that came before."""

    def __init__(self, device, rows=3, vocabulary=12, frequency=0.4, presence=0.2):
        self.counts = torch.zeros(rows, vocabulary, device=device)
        self.frequency, self.presence = frequency, presence

    def choose(self, logits):
        past = self.counts  # guilty: the tensor of the capture
        penalty = self.frequency * past + self.presence * (past > 0)
        return (logits - penalty).argmax(-1, keepdim=True)


def token_counts_are_made_anew(device):
    class Sampler(_Penalized):
        def __call__(self, logits):
            tokens = self.choose(logits)
            ones = torch.ones_like(tokens, dtype=torch.float32)
            self.counts = self.counts.scatter_add(1, tokens, ones)  # guilty: another tensor
            return tokens

    return Sampler(device), (torch.randn(3, 12, device=device),)


def token_counts_are_added_to(device):
    class Sampler(_Penalized):
        def __call__(self, logits, restarted):
            self.counts.masked_fill_(restarted.unsqueeze(1), 0.0)
            tokens = self.choose(logits)
            self.counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.float32))
            return tokens, self.counts.amax(1)

    restarted = torch.tensor([False, True, False], device=device)
    return Sampler(device), (torch.randn(3, 12, device=device), restarted)


class _Beams:
    def __init__(self, device, beams=3, vocabulary=10, room=16):
        self.scores = torch.zeros(beams, device=device)
        self.tokens = torch.zeros(beams, room, dtype=torch.long, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.beams, self.vocabulary, self.room = beams, vocabulary, room
        self.length = 1

    def extend(self, logits, penalty):
        total = self.scores.unsqueeze(1) + logits.log_softmax(-1)
        ranked = (total / penalty).flatten().topk(self.beams).indices
        parents = ranked // self.vocabulary
        self.scores.copy_(total.flatten()[ranked])
        self.tokens.copy_(self.tokens[parents])
        self.tokens.index_copy_(1, self.place, (ranked % self.vocabulary).unsqueeze(1))
        self.place.add_(1).remainder_(self.room)
        return parents


def beams_are_divided_by_a_counted_length(device):
    beams = _Beams(device)

    def step(logits):
        penalty = ((5 + beams.length) / 6) ** 0.6  # guilty: the length of the capture
        parents = beams.extend(logits, penalty)
        beams.length += 1  # guilty: counted once only
        return parents, beams.scores / penalty

    return step, (torch.randn(3, 10, device=device),)


def beams_are_divided_by_a_length_on_the_device(device):
    beams = _Beams(device)

    def step(logits):
        penalty = ((6 + beams.place) / 6) ** 0.6
        parents = beams.extend(logits, penalty)
        return parents, beams.scores / penalty, beams.tokens.clone()

    return step, (torch.randn(3, 10, device=device),)

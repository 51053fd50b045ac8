"""Layers that keep averages, codebooks, queues, tables and switches in buffers."""

import copy

import torch
from torch import nn


def cumulative_batch_norm(device):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6, momentum=None),
        nn.ReLU(),
    ).to(device)
    x = torch.randn(4, 3, 8, 8, device=device)

    def step():
        return model(x).mean()  # guilty: the cumulative average reads the batch count on the host

    return step


class AssignedCodebook(nn.Module):
    def __init__(self, codes=16, dim=6, decay=0.9):
        super().__init__()
        self.decay = decay
        self.embedding = nn.Parameter(torch.randn(codes, dim), requires_grad=False)
        self.register_buffer("sizes", torch.ones(codes))
        self.register_buffer("sums", torch.randn(codes, dim))

    def forward(self, x):
        nearest = torch.cdist(x, self.embedding).argmin(1)  # guilty: an old codebook
        chosen = nn.functional.one_hot(nearest, 16).type(x.dtype)
        quantized = chosen @ self.embedding  # guilty: as above
        if self.training:
            with torch.no_grad():
                rest = 1 - self.decay
                self.sizes = self.sizes * self.decay + rest * chosen.sum(0)  # guilty: a new tensor
                self.sums = self.sums * self.decay + rest * chosen.T @ x  # guilty: as above
                n = self.sizes.sum()
                sizes = (self.sizes + 1e-5) / (n + 16e-5) * n
                codebook = self.sums / sizes[:, None]
                self.embedding = nn.Parameter(codebook, requires_grad=False)  # guilty: a new one
        return x + (quantized - x).detach()


def codebook_is_assigned(device):
    layer = AssignedCodebook().to(device)
    x = torch.randn(20, 6, device=device)

    def step():
        return layer(x)

    return step


class UpdatedCodebook(nn.Module):
    """The same codebook, updated in place; `.data` is read, not assigned."""

    def __init__(self, codes=16, dim=6, decay=0.9):
        super().__init__()
        self.decay = decay
        embed = torch.randn(dim, codes)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(codes))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, x):
        distance = x.pow(2).sum(1, keepdim=True) - 2 * x @ self.embed + self.embed.pow(2).sum(0)
        _, nearest = (-distance).max(1)
        chosen = nn.functional.one_hot(nearest, 16).type(x.dtype)
        quantized = nn.functional.embedding(nearest, self.embed.T)
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(chosen.sum(0), alpha=1 - self.decay)
            self.embed_avg.data.mul_(self.decay).add_(x.T @ chosen, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            sizes = (self.cluster_size + 1e-5) / (n + 16e-5) * n
            self.embed.data.copy_(self.embed_avg / sizes.unsqueeze(0))
        return x + (quantized - x).detach(), (quantized.detach() - x).pow(2).mean()


def codebook_is_updated_in_place(device):
    layer = UpdatedCodebook().to(device)
    x = torch.randn(20, 6, device=device)

    def step():
        return layer(x)

    return step


def decoder_compares_its_mask(device):
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 1).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(6, device=device)
    memory = torch.randn(2, 4, 16, device=device)

    def forward(x):
        return decoder(x, memory, tgt_mask=mask)  # guilty: compares the mask on the host

    return forward, (torch.randn(2, 6, 16, device=device),)


def encoder_is_told_that_its_mask_is_causal(device):
    """With is_causal=True the mask is not compared."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(6, device=device)

    def forward(x):
        return encoder(x, mask=mask, is_causal=True)

    return forward, (torch.randn(2, 6, 16, device=device),)


def fake_quantize_has_switches(device):
    quantize = torch.ao.quantization.FakeQuantize(
        observer=torch.ao.quantization.MovingAverageMinMaxObserver,
        quant_min=0,
        quant_max=255,
    )
    model = nn.Sequential(nn.Linear(8, 8), quantize, nn.Linear(8, 4)).to(device)
    x = torch.randn(5, 8, device=device)

    def step():
        return model(x).sum()  # guilty: the switches of the module are buffers, read on the host

    return step


class CrossInteraction(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3))
        self.top = nn.Linear(8 + 6, 1)

    def forward(self, dense, ids, offsets):
        rows = [table(ids, offsets) for table in self.tables]
        t = torch.stack([dense, *rows], dim=1)
        z = torch.bmm(t, t.transpose(1, 2))
        i = torch.tensor([i for i in range(4) for j in range(i)])
        j = torch.tensor([j for i in range(4) for j in range(i)])
        flat = z[:, i, j]  # guilty: the indices are in host memory
        return self.top(torch.cat([dense, flat], dim=1))


def interactions_are_indexed_from_the_host(device):
    model = CrossInteraction().to(device)
    ids = torch.randint(30, (10,), device=device)
    offsets = torch.tensor([0, 3, 4, 8], device=device)

    def score(dense, ids):
        return model(dense, ids, offsets)

    return score, (torch.randn(4, 8, device=device), ids)


class GhostNorm(nn.Module):
    """Normalizes parts of the batch one after the other; the running averages see all of them."""

    def __init__(self, features, part):
        super().__init__()
        self.part = part
        self.norm = nn.BatchNorm1d(features, momentum=0.01)

    def forward(self, x):
        parts = x.chunk(-(-x.shape[0] // self.part), 0)
        return torch.cat([self.norm(p) for p in parts], dim=0)


def ghost_batches(device):
    model = nn.Sequential(nn.Linear(7, 8), GhostNorm(8, 4), nn.GLU(), nn.Linear(4, 2)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    x, y = torch.randn(16, 7, device=device), torch.randn(16, 2, device=device)

    def step():
        loss = nn.functional.huber_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class LazyRotary(nn.Module):
    """Makes its tables when a longer sequence comes; after the warm-up none does."""

    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("frequencies", 1.0 / 100 ** (torch.arange(0, dim, 2) / dim))
        self.cached = 0

    def forward(self, x):
        length = x.shape[-2]
        if length > self.cached:
            self.cached = length
            t = torch.arange(length, device=x.device, dtype=self.frequencies.dtype)
            angles = torch.outer(t, self.frequencies).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        half = torch.cat((-x[..., 4:], x[..., :4]), dim=-1)
        return x * self.cos[:length].to(x.dtype) + half * self.sin[:length].to(x.dtype)


def rotary_tables_grow_in_warm_up(device):
    rotary = LazyRotary().to(device)
    query = nn.Linear(8, 8).to(device)

    def forward(x):
        q, k = rotary(query(x)), rotary(x)
        return nn.functional.scaled_dot_product_attention(q, k, x, is_causal=True)

    return forward, (torch.randn(2, 3, 10, 8, device=device),)


def queue_of_keys_with_a_pointer(device):
    """The pointer of the queue is a buffer that indexes, and it advances on the device."""
    query = nn.Linear(10, 6).to(device)
    key = copy.deepcopy(query).requires_grad_(False)
    queue = nn.functional.normalize(torch.randn(24, 6, device=device), dim=1)
    pointer = torch.zeros(1, dtype=torch.long, device=device)
    rows = torch.arange(8, device=device)
    opt = torch.optim.SGD(query.parameters(), lr=0.03, momentum=0.9)
    labels = torch.zeros(8, dtype=torch.long, device=device)
    x = torch.randn(8, 10, device=device)

    def step():
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.data = slow.data.mul_(0.99).add_(fast.data, alpha=0.01)
            shuffled = torch.randperm(8, device=device)
            k = nn.functional.normalize(key(x[shuffled]), dim=1)[torch.argsort(shuffled)]
        q = nn.functional.normalize(query(x), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,kc->nk", q, queue.clone().detach())
        loss = nn.functional.cross_entropy(torch.cat([positive, negative], 1) / 0.07, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue.index_copy_(0, (pointer + rows) % 24, k)
        pointer.add_(8).remainder_(24)
        return loss.detach()

    return step

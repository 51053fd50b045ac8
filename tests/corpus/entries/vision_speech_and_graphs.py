"""Diffusion, detection, speech, point clouds and graph networks as research code writes them."""

from __future__ import annotations

import math
import random

import torch
from torch import nn
from torch.nn import functional


class _Denoiser(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, channels))
        self.inp = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x, t):
        half = 4
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        args = t[:, None].float() * freqs[None]
        emb = self.time(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))
        return self.out(functional.silu(self.norm(self.inp(x)) + emb[:, :, None, None]))


def _alphas(device, steps=100):
    return torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0).to(device)


# The times are numbers of Python, and the tables are indexed with them: nothing is read.
def ddim_in_four_steps(device):
    model, alphas = _Denoiser().to(device), _alphas(device)
    times = list(range(99, -1, -25))

    @torch.no_grad()
    def sample(x):
        for now, then in zip(times, [*times[1:], -1], strict=True):
            t = torch.full((x.shape[0],), now, device=x.device, dtype=torch.long)
            eps = model(x, t)
            a = alphas[now]
            b = alphas[then] if then >= 0 else torch.ones_like(a)
            x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
            x = b.sqrt() * x0.clamp(-1, 1) + (1 - b).sqrt() * eps
        return x

    return sample, (torch.randn(2, 3, 8, 8, device=device),)


# Times and noise are drawn on the device, weights by the ratio of signal to noise.
def ddpm_training_step(device):
    model, alphas = _Denoiser().to(device), _alphas(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x0 = torch.randn(2, 3, 8, 8, device=device)

    def step():
        t = torch.randint(0, len(alphas), (x0.shape[0],), device=x0.device).long()
        noise = torch.randn_like(x0)
        a = alphas.gather(0, t).reshape(-1, 1, 1, 1)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        loss = functional.mse_loss(model(xt, t), noise, reduction="none").flatten(1).mean(1)
        snr = (a / (1 - a)).flatten()
        loss = (loss * torch.minimum(snr, torch.full_like(snr, 5.0)) / snr).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _inverse_sigmoid(x, eps=1e-5):
    x = x.clamp(min=0, max=1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


class _DecoderHead(nn.Module):
    """Boxes refined layer by layer; the output is a dictionary with a list in it."""

    def __init__(self, dim=16, queries=5, classes=4, layers=2):
        super().__init__()
        self.query = nn.Embedding(queries, dim)
        self.reference = nn.Linear(dim, 4)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.boxes = nn.ModuleList(nn.Linear(dim, 4) for _ in range(layers))
        self.classes = nn.Linear(dim, classes)

    def forward(self, memory):
        x = self.query.weight.unsqueeze(0).repeat(memory.shape[0], 1, 1)
        reference = self.reference(x).sigmoid()
        outputs = []
        for layer, box in zip(self.layers, self.boxes, strict=True):
            x = layer(x, memory)
            reference = (box(x) + _inverse_sigmoid(reference)).sigmoid()
            outputs.append({"pred_logits": self.classes(x), "pred_boxes": reference})
            reference = reference.detach()
        return {**outputs[-1], "aux_outputs": outputs[:-1]}


def detection_by_queries(device):
    return _DecoderHead().to(device), (torch.randn(2, 6, 16, device=device),)


class _GraphConv(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.lin = nn.Linear(dim, dim, bias=False)

    def forward(self, x, edges):
        n = x.size(0)
        loops = torch.arange(n, device=x.device).unsqueeze(0).repeat(2, 1)
        row, col = torch.cat([edges, loops], dim=1)
        degree = torch.zeros(n, device=x.device).scatter_add_(0, col, torch.ones_like(col).float())
        inv = degree.pow(-0.5)
        inv = inv.masked_fill(inv == float("inf"), 0)
        messages = self.lin(x)[row] * (inv[row] * inv[col]).unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, col, messages)


def graph_convolution_with_known_nodes(device):
    model = _GraphConv().to(device)
    edges = torch.randint(0, 10, (2, 24), device=device)

    @torch.no_grad()
    def forward(x, edges):
        return model(x, edges).relu()

    return forward, (torch.randn(10, 8, device=device), edges)


# The softmax over the edges of each node, by reductions into a known number of nodes.
def graph_attention_by_reductions(device):
    lin, att = nn.Linear(8, 8).to(device), nn.Parameter(torch.randn(16, device=device) / 4)

    @torch.no_grad()
    def forward(x, edges):
        src, dst = edges[0], edges[1]
        h = lin(x)
        score = functional.leaky_relu((torch.cat([h[src], h[dst]], -1) * att).sum(-1), 0.2)
        n = x.size(0)
        top = score.new_full((n,), -1e9).scatter_reduce_(0, dst, score, reduce="amax")
        score = (score - top[dst]).exp()
        total = score.new_zeros(n).scatter_add_(0, dst, score)
        weight = score / (total[dst] + 1e-16)
        return h.new_zeros(n, 8).index_add_(0, dst, h[src] * weight[:, None])

    edges = torch.randint(0, 10, (2, 24), device=device)
    return forward, (torch.randn(10, 8, device=device), edges)


class _RelativePositions(nn.Module):
    """Its table grows with the longest input so far, which warm-up has seen."""

    def __init__(self, dim=16):
        super().__init__()
        self.dim, self.pe = dim, None

    def extend(self, x):
        if self.pe is not None and self.pe.size(1) >= x.size(1) * 2 - 1:
            if self.pe.dtype != x.dtype or self.pe.device != x.device:
                self.pe = self.pe.to(dtype=x.dtype, device=x.device)
            return
        pos = torch.arange(x.size(1) - 1, -x.size(1), -1.0).unsqueeze(1)
        div = torch.exp(torch.arange(0, self.dim, 2).float() * -(math.log(10000.0) / self.dim))
        pe = torch.zeros(x.size(1) * 2 - 1, self.dim)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.pe = pe.unsqueeze(0).to(device=x.device, dtype=x.dtype)

    def forward(self, x):
        self.extend(x)
        middle = self.pe.size(1) // 2
        return self.pe[:, middle - x.size(1) + 1 : middle + x.size(1)]


class _ConformerAttention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.qkv, self.pos = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim, bias=False)
        self.u, self.v = (nn.Parameter(torch.randn(heads, self.width)) for _ in range(2))
        self.positions = _RelativePositions(dim)

    @staticmethod
    def shift(x):
        b, h, t, n = x.size()
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1).view(b, h, n + 1, t)
        return x[:, :, 1:].view(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, self.width) for y in self.qkv(x).chunk(3, -1))
        p = self.pos(self.positions(x)).view(1, -1, self.heads, self.width).transpose(1, 2)
        content = (q + self.u).transpose(1, 2) @ k.permute(0, 2, 3, 1)
        place = self.shift((q + self.v).transpose(1, 2) @ p.transpose(-2, -1))
        attn = ((content + place) / math.sqrt(self.width)).softmax(-1)
        return (attn @ v.transpose(1, 2)).transpose(1, 2).reshape(b, t, d)


def conformer_with_relative_positions(device):
    return _ConformerAttention().to(device), (torch.randn(2, 5, 16, device=device),)


# A spectrogram by the transform of the device, with window and filters as buffers.
def logarithmic_mel_spectrogram(device):
    window = torch.hann_window(16, device=device)
    filters = torch.rand(4, 9, device=device)
    encoder = nn.Conv1d(4, 8, 3, padding=1).to(device)

    @torch.no_grad()
    def forward(audio):
        spectrum = torch.stft(audio, 16, 8, window=window, return_complex=True)
        mel = filters @ spectrum[..., :-1].abs() ** 2
        log = torch.clamp(mel, min=1e-10).log10()
        log = torch.maximum(log, log.amax((1, 2), keepdim=True) - 8.0)
        return functional.gelu(encoder((log + 4.0) / 4.0))

    return forward, (torch.randn(2, 128, device=device),)


class _Detect(nn.Module):
    """Grids are made when the feature map changes its size, which is in warm-up."""

    def __init__(self, classes=3, anchors=((10, 13), (16, 30))):
        super().__init__()
        self.no, self.na = classes + 5, len(anchors)
        self.grid = torch.empty(0)
        self.register_buffer("anchors", torch.tensor(anchors).float())
        self.conv = nn.Conv2d(8, self.no * self.na, 1)

    def make_grid(self, nx, ny, device):
        yv, xv = torch.meshgrid(
            torch.arange(ny, device=device), torch.arange(nx, device=device), indexing="ij"
        )
        return torch.stack((xv, yv), 2).expand(1, self.na, ny, nx, 2).float() - 0.5

    @torch.no_grad()
    def forward(self, x):
        x = self.conv(x)
        bs, _, ny, nx = x.shape
        x = x.view(bs, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        if self.grid.shape[2:4] != x.shape[2:4]:
            self.grid = self.make_grid(nx, ny, x.device)
        xy, wh, conf = x.sigmoid().split((2, 2, self.no - 4), 4)
        xy = (xy * 2 + self.grid) * 8
        wh = (wh * 2) ** 2 * self.anchors.view(1, self.na, 1, 1, 2)
        return torch.cat((xy, wh, conf), 4).view(bs, -1, self.no)


def one_stage_detection_head(device):
    return _Detect().to(device).eval(), (torch.randn(2, 8, 4, 4, device=device),)


class _Quantizer(nn.Module):
    """A codebook by moving averages, all of them in place."""

    def __init__(self, codes=8, dim=4, decay=0.9):
        super().__init__()
        self.decay = decay
        embed = torch.randn(codes, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t()
        index = (distance + self.embed.pow(2).sum(1)).argmin(-1)
        onehot = torch.zeros(len(flat), len(self.embed), device=x.device)
        onehot.scatter_(1, index[:, None], 1)
        quantized = functional.embedding(index, self.embed.clone()).view_as(x)
        if self.training:
            with torch.no_grad():
                self.cluster_size.data.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
                self.embed_avg.data.mul_(self.decay).add_(onehot.t() @ flat, alpha=1 - self.decay)
                n = self.cluster_size.sum()
                smoothed = (self.cluster_size + 1e-5) / (n + len(self.embed) * 1e-5) * n
                self.embed.data.copy_(self.embed_avg / smoothed.unsqueeze(1))
        loss = functional.mse_loss(x, quantized.detach())
        return x + (quantized - x).detach(), loss


def codebook_by_moving_averages(device):
    encoder, quantizer = nn.Linear(8, 4).to(device), _Quantizer().to(device)

    def forward(x):
        y, loss = quantizer(encoder(x))
        return y, loss

    return forward, (torch.randn(6, 8, device=device),)


# Rays, stratified depths and the weights of a volume.
def radiance_field_along_rays(device):
    net = nn.Sequential(nn.Linear(39, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)

    def forward(origins, directions):
        z = torch.linspace(2.0, 6.0, 8, device=origins.device).expand(len(origins), 8)
        mids = 0.5 * (z[..., 1:] + z[..., :-1])
        upper, lower = torch.cat([mids, z[..., -1:]], -1), torch.cat([z[..., :1], mids], -1)
        z = lower + (upper - lower) * torch.rand(z.shape, device=z.device)
        points = origins[:, None] + directions[:, None] * z[..., None]
        scaled = [points] + [f(points * 2.0**i) for i in range(6) for f in (torch.sin, torch.cos)]
        raw = net(torch.cat(scaled, -1))
        gaps = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 1e10)], -1)
        alpha = 1 - torch.exp(-functional.relu(raw[..., 3]) * gaps)
        clear = torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1)
        clear = torch.cumprod(clear, -1)  # guilty: its backward asks whether a factor is zero
        weights = alpha * clear[:, :-1]
        return (weights[..., None] * raw[..., :3].sigmoid()).sum(1), (weights * z).sum(1)

    rays = torch.randn(4, 3, device=device), torch.randn(4, 3, device=device)
    return forward, rays


# The number of nodes is taken from the edges.
def scatter_counts_the_nodes(device):
    lin = nn.Linear(8, 8).to(device)

    def scatter_sum(src, index, size=None):
        if size is None:
            size = int(index.max()) + 1  # guilty: waits for the largest index
        return src.new_zeros(size, src.shape[1]).index_add_(0, index, src)

    @torch.no_grad()
    def forward(x, edges):
        return scatter_sum(lin(x)[edges[0]], edges[1]).relu()

    edges = torch.randint(0, 10, (2, 24), device=device)
    return forward, (torch.randn(10, 8, device=device), edges)


class _Matcher:
    """Pairs predictions and boxes by their cost, one after the other, on the host."""

    @torch.no_grad()
    def __call__(self, logits, boxes, labels, targets):
        cost = torch.cdist(boxes, targets, p=1) - logits.softmax(-1)[:, labels]
        cost = cost.cpu().numpy()  # guilty: a copy to the host, which waits
        rows, taken = [], set()
        for column in range(cost.shape[1]):
            row = min(set(range(len(cost))) - taken, key=lambda r: cost[r, column])
            taken.add(row)
            rows.append(row)
        return rows


def set_prediction_loss(device):
    head, matcher = _DecoderHead().to(device), _Matcher()
    labels = torch.tensor([0, 2], device=device)
    targets = torch.rand(2, 4, device=device)

    def forward(memory):
        out = head(memory)
        logits, boxes = out["pred_logits"][0], out["pred_boxes"][0]
        rows = matcher(logits.detach(), boxes.detach(), labels, targets)
        return functional.l1_loss(boxes[rows], targets) + functional.cross_entropy(
            logits[rows], labels
        )

    return forward, (torch.randn(1, 6, 16, device=device),)


def _overlap(box, boxes):
    lt, rb = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return inter / ((box[2:] - box[:2]).prod() + area - inter)


# Suppression as in many first versions: the best box, then those that overlap little.
def suppression_in_a_while_loop(device):
    head = nn.Linear(8, 5).to(device)

    @torch.no_grad()
    def forward(x):
        raw = head(x)
        scores = raw[:, 4].sigmoid()
        boxes = torch.cat([raw[:, :2], raw[:, :2] + raw[:, 2:4].exp()], 1)
        order, keep = scores.argsort(descending=True), []
        while order.numel() > 0:
            best = order[0]
            keep.append(best)
            overlap = _overlap(boxes[best], boxes[order[1:]])  # guilty: reads the row's number
            order = order[1:][overlap <= 0.5]  # guilty: as many as the data says
        return torch.stack(keep)

    return forward, (torch.randn(6, 8, device=device),)


# The focal loss is divided by the number of positives, which is at least one.
def focal_loss_by_positives(device):
    head = nn.Conv2d(8, 2, 1).to(device)

    def focal(logits, targets, alpha=0.25, gamma=2.0):
        p = logits.sigmoid()
        ce = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        weight = alpha * targets + (1 - alpha) * (1 - targets)
        positives = max(1, (targets > 0.5).sum().item())  # guilty: .item()
        return (weight * (1 - p_t) ** gamma * ce).sum() / positives

    targets = (torch.rand(2, 2, 4, 4) < 0.3).float().to(device)
    return lambda x, y: focal(head(x), y), (torch.randn(2, 8, 4, 4, device=device), targets)


# Bands of time and frequency are masked at places that `random` draws.
def spectrum_masks_by_random(device):
    encoder = nn.Conv1d(8, 8, 3, padding=1).to(device)

    def augment(x, width=3):
        x = x.clone()
        start = random.randint(0, x.shape[-1] - width)  # guilty: drawn once
        x[:, :, start : start + width] = 0  # guilty: the place of the capture
        return x

    def forward(x):
        return encoder(augment(x)).relu()

    return forward, (torch.randn(2, 8, 40, device=device),)


def _ancestral(now, then, eta=1.0):
    up = min(then, eta * (then**2 * (now**2 - then**2) / now**2) ** 0.5)  # guilty: compares tensors
    return (then**2 - up**2) ** 0.5, up


def ancestral_sampler(device):
    model = _Denoiser().to(device)
    sigmas = torch.linspace(5.0, 0.1, 4, device=device)

    @torch.no_grad()
    def sample(x):
        for i in range(len(sigmas) - 1):
            t = sigmas[i].expand(x.shape[0])
            denoised = model(x / (sigmas[i] ** 2 + 1).sqrt(), t)
            down, up = _ancestral(sigmas[i], sigmas[i + 1])
            x = x + (x - denoised) / sigmas[i] * (down - sigmas[i])
            x = x + torch.randn_like(x) * up
        return x

    return sample, (torch.randn(2, 3, 8, 8, device=device),)


class _LazyCodebook(nn.Module):
    """Its codes are the first inputs that it sees."""

    def __init__(self, codes=4, dim=8):
        super().__init__()
        self.register_buffer("initted", torch.Tensor([False]))
        self.register_buffer("embed", torch.zeros(codes, dim))

    def init_embed_(self, data):
        if self.initted:  # guilty: the truth of a tensor
            return
        self.embed.data.copy_(data[: len(self.embed)])
        self.initted.data.copy_(torch.Tensor([True]))

    @torch.no_grad()
    def forward(self, x):
        self.init_embed_(x)
        index = torch.cdist(x, self.embed).argmin(-1)
        return functional.embedding(index, self.embed), index


def codebook_of_the_first_batch(device):
    return _LazyCodebook().to(device), (torch.randn(6, 8, device=device),)


# The label is dropped for the whole batch, now and then.
def guidance_without_a_label(device):
    model, labels = _Denoiser().to(device), nn.Embedding(11, 8 * 8).to(device)

    def forward(x, y, t):
        if random.random() < 0.1:  # guilty: the branch of the capture
            y = torch.full_like(y, 10)
        return model(x + labels(y).view(-1, 1, 8, 8), t)

    x = torch.randn(2, 3, 8, 8, device=device)
    y, t = torch.randint(10, (2,), device=device), torch.randint(100, (2,), device=device)
    return forward, (x, y, t)


class _RandomCrop(nn.Module):
    def __init__(self, size=6):
        super().__init__()
        self.size = size

    def place(self, x):
        h, w = x.shape[-2:]
        top = torch.randint(0, h - self.size + 1, size=(1,)).item()  # guilty: drawn on the host
        left = torch.randint(0, w - self.size + 1, size=(1,)).item()  # guilty: drawn on the host
        return top, left

    def forward(self, x):
        top, left = self.place(x)
        return x[..., top : top + self.size, left : left + self.size]  # guilty: of the capture


def views_by_random_crops(device):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.to(device)
    crop = _RandomCrop()

    @torch.no_grad()
    def forward(x):
        a, b = net(crop(x)), net(crop(x))
        return -functional.cosine_similarity(a, b).mean()

    return forward, (torch.randn(2, 3, 16, 16, device=device),)


# The lengths are on the device, and the loss needs them on the host.
def recognition_loss_of_device_lengths(device):
    encoder = nn.Linear(8, 6).to(device)
    lengths = torch.tensor([10, 8], device=device)
    targets = torch.randint(1, 6, (2, 3), device=device)
    target_lengths = torch.tensor([3, 2], device=device)

    def forward(x):
        log_probs = encoder(x).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(
            log_probs, targets, lengths, target_lengths
        )  # guilty: reads the lengths

    return forward, (torch.randn(2, 10, 8, device=device),)

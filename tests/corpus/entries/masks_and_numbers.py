"""Losses with masks, metrics, and what asks the device for a number on the way."""

import logging
import math

import torch
from torch import nn
from torch.nn import functional

logger = logging.getLogger("training")
logger.setLevel(logging.WARNING)


def loss_of_the_labelled(device):
    head = nn.Linear(8, 5, device=device)
    labels = torch.randint(-1, 5, (16,), device=device)

    def loss(x):
        logits = head(x)
        valid = labels >= 0
        return functional.cross_entropy(
            logits[valid], labels[valid]
        )  # guilty: as many rows as are valid

    return loss, (torch.randn(16, 8, device=device),)


def loss_ignores_the_unlabelled(device):
    head = nn.Linear(8, 5, device=device)
    labels = torch.randint(-1, 5, (16,), device=device)

    def loss(x):
        logits = head(x)
        losses = functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
        valid = (labels >= 0).float()
        return (losses * valid).sum() / valid.sum().clamp(min=1)

    return loss, (torch.randn(16, 8, device=device),)


def smaller_of_two_losses(device):
    head = nn.Linear(8, 5, device=device)

    def loss(x, y, other):
        logits = head(x)
        return min(
            functional.cross_entropy(logits, y), functional.cross_entropy(logits, other)
        )  # guilty: compares

    y, other = torch.randint(5, (2, 16), device=device)
    return loss, (torch.randn(16, 8, device=device), y, other)


def smaller_of_two_losses_on_the_device(device):
    head = nn.Linear(8, 5, device=device)

    def loss(x, y, other):
        logits = head(x)
        both = [functional.cross_entropy(logits, y), functional.cross_entropy(logits, other)]
        return torch.stack(both).amin() + sum(both) / len(both)

    y, other = torch.randint(5, (2, 16), device=device)
    return loss, (torch.randn(16, 8, device=device), y, other)


def debug_log_formats(device):
    head = nn.Linear(8, 1, device=device)

    def forward(x):
        loss = head(x).square().mean()
        logger.debug(f"loss {loss:.4f}")  # guilty: formatted although nobody logs it
        return loss

    return forward, (torch.randn(4, 8, device=device),)


def debug_log_is_lazy(device):
    head = nn.Linear(8, 1, device=device)

    def forward(x):
        loss = head(x).square().mean()
        logger.debug("loss %.4f", loss)
        if logger.isEnabledFor(logging.INFO):
            logger.info("loss %s", loss.item())
        return loss

    return forward, (torch.randn(4, 8, device=device),)


def rows_repeated_by_counts(device):
    counts = torch.tensor([1, 3, 2, 2], device=device)

    def expand(x):
        return x.repeat_interleave(counts, dim=0)  # guilty: the sum of the counts is the size

    return expand, (torch.randn(4, 8, device=device),)


def rows_repeated_to_a_known_size(device):
    counts = torch.tensor([1, 3, 2, 2], device=device)

    def expand(x):
        out = x.repeat_interleave(counts, dim=0, output_size=8)
        return out + x.repeat_interleave(2, dim=0)

    return expand, (torch.randn(4, 8, device=device),)


def constant_made_each_time(device):
    def normalise(images):
        mean = images.new_tensor([0.485, 0.456, 0.406])[
            :, None, None
        ]  # guilty: copied from the host
        return images - mean

    return normalise, (torch.rand(2, 3, 4, 4, device=device),)


def constant_filled_each_time(device):
    def normalise(images):
        mean = images.new_full((3, 1, 1), 0.45)
        scale = torch.full((), 1 / 0.22, device=images.device)
        return (images - mean) * scale + torch.zeros_like(images[:, :1])

    return normalise, (torch.rand(2, 3, 4, 4, device=device),)


def cpu_constants_of_no_dimension(device):
    temperature = torch.tensor(0.5)
    one = torch.ones(())

    def scale(x):
        return (x * temperature).softmax(-1) + one

    return scale, (torch.randn(4, 8, device=device),)


def cpu_temperature_is_lowered(device):
    temperature = torch.tensor(1.0)

    def scale(x):
        temperature.mul_(0.9)  # guilty: it changes on the host
        return x / temperature  # guilty: its value of the capture

    return scale, (torch.randn(4, 8, device=device),)


def channels_by_a_list(device):
    def rgb_to_bgr(images):
        return images[:, [2, 1, 0]]  # guilty: the list becomes a tensor of the host

    return rgb_to_bgr, (torch.rand(2, 3, 4, 4, device=device),)


def channels_by_flip(device):
    order = torch.tensor([2, 1, 0], device=device)

    def rgb_to_bgr(images):
        r, g, b = images.unbind(1)
        swapped = torch.stack([b, g, r], 1)
        return swapped + images.flip(1) + images.index_select(1, order) + images[:, order]

    return rgb_to_bgr, (torch.rand(2, 3, 4, 4, device=device),)


def pairs_of_rows(device):
    def contrast(x):
        index = torch.combinations(torch.arange(4, device=device), r=2)  # guilty: masked_select
        return (x[index[:, 0]] - x[index[:, 1]]).norm(dim=1).mean()

    return contrast, (torch.randn(4, 8, device=device),)


def pairs_of_the_triangle(device):
    def contrast(x):
        rows, columns = torch.triu_indices(4, 4, offset=1, device=device)
        return (x[rows] - x[columns]).pow(2).sum(1).mean() + torch.pdist(x).mean()

    return contrast, (torch.randn(4, 8, device=device),)


def one_hot_without_classes(device):
    table = torch.randn(5, 8, device=device)

    def embed(index):
        return functional.one_hot(index).float() @ table[:4]  # guilty: the largest index is read

    index = torch.tensor([0, 1, 2, 3, 3], device=device)
    return embed, (index,)


def one_hot_with_classes(device):
    table = torch.randn(5, 8, device=device, requires_grad=True)

    def embed(index):
        soft = functional.one_hot(index, num_classes=5).float() * 0.9 + 0.1 / 5
        return soft @ table

    return embed, (torch.tensor([0, 1, 2, 3, 3], device=device),)


def clips_and_raises(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()
        return nn.utils.clip_grad_norm_(
            model.parameters(), 1.0, error_if_nonfinite=True
        )  # guilty: asks whether the norm is finite

    return step


def clips_by_value_and_norm(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        return loss.detach(), norm

    return step


def accuracy_as_a_number(device):
    head = nn.Linear(8, 5, device=device)

    def evaluate(x, y):
        logits = head(x)
        correct = (logits.argmax(-1) == y).sum()
        accuracy = 100.0 * correct / len(y)
        return {
            "loss": functional.cross_entropy(logits, y),
            "accuracy": round(accuracy.item(), 2),
        }  # guilty: read

    return evaluate, (torch.randn(16, 8, device=device), torch.randint(5, (16,), device=device))


def accuracy_as_a_tensor(device):
    head = nn.Linear(8, 5, device=device)

    def evaluate(x, y):
        logits = head(x)
        accuracy = {f"top{k}": 0 for k in (1, 3)}
        for k in (1, 3):
            hits = logits.topk(k, dim=-1).indices == y[:, None]
            accuracy[f"top{k}"] = hits.any(-1).float().mean() * 100
        return {"loss": functional.cross_entropy(logits, y), **accuracy}

    return evaluate, (torch.randn(16, 8, device=device), torch.randint(5, (16,), device=device))


def focal_loss(device):
    head = nn.Linear(8, 5, device=device)
    alpha = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2], device=device)

    def loss(x, y):
        logp = head(x).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
        return (-alpha[y] * (1 - logp.exp()).pow(2) * logp).mean()

    return loss, (torch.randn(16, 8, device=device), torch.randint(5, (16,), device=device))


def hard_examples_by_share(device):
    head = nn.Linear(8, 5, device=device)

    def loss(x, y):
        losses = functional.cross_entropy(head(x), y, reduction="none")
        keep = int(0.7 * losses.numel())
        kept, _ = losses.topk(keep)
        threshold = torch.quantile(losses.detach(), 0.3)
        return kept.mean() + torch.where(losses > threshold, losses, 0).mean()

    return loss, (torch.randn(16, 8, device=device), torch.randint(5, (16,), device=device))


def hard_examples_above_a_threshold(device):
    head = nn.Linear(8, 5, device=device)

    def loss(x, y):
        losses = functional.cross_entropy(head(x), y, reduction="none")
        hard = losses.masked_select(losses > 1.0)  # guilty: as many as are hard
        return hard.sum() / 16

    return loss, (torch.randn(16, 8, device=device), torch.randint(5, (16,), device=device))


def asserts_that_all_is_finite(device):
    model = nn.Linear(8, 1, device=device)

    def forward(x):
        y = model(x)
        assert not torch.isnan(y).any(), "NaN in the forward"  # guilty: the host asks
        return y

    return forward, (torch.randn(4, 8, device=device),)


def asserts_shapes_and_types(device):
    model = nn.Linear(8, 1, device=device)

    def forward(x, mask=None):
        assert x.ndim == 2 and x.shape[-1] == model.in_features, f"shape {tuple(x.shape)}"
        assert x.dtype.is_floating_point and x.device.type != "meta" and x.is_contiguous()
        if mask is None and len(x) > 2 and x.numel():
            mask = torch.ones_like(x, dtype=torch.bool)
        torch._assert_async(mask.sum() > 0)
        return model(x.masked_fill(~mask, 0.0))

    return forward, (torch.randn(4, 8, device=device),)


def solves_and_checks(device):
    eye = torch.eye(4, device=device)

    def ridge(x, y):
        gram = x.t() @ x + 0.1 * eye
        return torch.linalg.solve(gram, x.t() @ y)  # guilty: reads the error code

    return ridge, (torch.randn(16, 4, device=device), torch.randn(16, 2, device=device))


def solves_without_checks(device):
    eye = torch.eye(4, device=device)

    def ridge(x, y):
        gram = x.t() @ x + 0.1 * eye
        factor, _info = torch.linalg.cholesky_ex(gram)
        z = torch.linalg.solve_triangular(factor, x.t() @ y, upper=False)
        return torch.linalg.solve_triangular(factor.mT, z, upper=True)

    return ridge, (torch.randn(16, 4, device=device), torch.randn(16, 2, device=device))


def full_of_a_device_value(device):
    def fill(x):
        top = x.max()
        background = torch.full(x.shape, top, device=device)  # guilty: a number, so it is read
        return torch.where(x > 0, x, background)

    return fill, (torch.randn(4, 8, device=device),)


def filled_with_a_device_value(device):
    def fill(x):
        top = x.max()
        background = torch.empty_like(x).fill_(top.detach())
        clipped = x.clamp(min=-top.detach(), max=top.detach())
        return torch.where(x > 0, clipped, background) + torch.pow(2, top)

    return fill, (torch.randn(4, 8, device=device),)


def crop_of_drawn_offsets(device):
    def crop(images):
        top, left = (int(torch.randint(0, 3, ())) for _ in range(2))  # guilty: drawn at capture
        return images[:, :, top : top + 4, left : left + 4]  # guilty: the crop of the capture

    return crop, (torch.rand(2, 3, 8, 8, device=device),)


def crop_by_a_grid(device):
    def crop(images):
        n = images.shape[0]
        offset = torch.rand(n, 2, device=device) * 0.5 - 0.25
        theta = torch.zeros(n, 2, 3, device=device)
        theta[:, 0, 0] = 0.5
        theta[:, 1, 1] = 0.5
        theta[:, :, 2] = offset
        grid = functional.affine_grid(theta, [n, 3, 4, 4], align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)

    return crop, (torch.rand(2, 3, 8, 8, device=device),)


def flip_decided_on_the_host(device):
    def augment(images):
        if torch.rand(()) < 0.5:  # guilty: drawn at capture
            images = images.flip(-1)
        return images * 2

    return augment, (torch.rand(2, 3, 8, 8, device=device),)


def flip_decided_by_where(device):
    def augment(images):
        flip = torch.rand(images.shape[0], 1, 1, 1, device=images.device) < 0.5
        jitter = 1 + 0.1 * torch.empty(images.shape[0], 1, 1, 1, device=device).uniform_(-1, 1)
        erase = torch.empty_like(images[:, :1]).bernoulli_(0.9)
        return torch.where(flip, images.flip(-1), images) * jitter * erase

    return augment, (torch.rand(2, 3, 8, 8, device=device),)


def mixup_with_a_host_permutation(device):
    def mix(images):
        order = torch.randperm(images.shape[0])
        return 0.7 * images + 0.3 * images[order]  # guilty: the index is copied from the host

    return mix, (torch.rand(4, 3, 8, 8, device=device),)


def mixup_with_a_device_permutation(device):
    def mix(images):
        order = torch.rand(images.shape[0], device=device).argsort()
        weight = torch.rand(images.shape[0], 1, 1, 1, device=device).mul_(0.5).add_(0.5)
        return weight * images + (1 - weight) * images[order]

    return mix, (torch.rand(4, 3, 8, 8, device=device),)


def split_by_lengths(device):
    lengths = torch.tensor([2, 3, 3], device=device)

    def pooled(x):
        pieces = x.split(lengths.tolist())  # guilty: the lengths are read
        return torch.stack([piece.mean(0) for piece in pieces])

    return pooled, (torch.randn(8, 4, device=device),)


def pooled_by_segments(device):
    lengths = torch.tensor([2, 3, 3], device=device)
    segment = torch.repeat_interleave(torch.arange(3, device=device), lengths, output_size=8)

    def pooled(x):
        total = x.new_zeros(3, 4).index_add(0, segment, x)
        return total / lengths[:, None].clamp(min=1)

    return pooled, (torch.randn(8, 4, device=device),)


def positions_up_to_the_longest(device):
    table = nn.Embedding(16, 8, device=device).requires_grad_(False)
    lengths = torch.tensor([3, 5, 8], device=device)

    def encode(x):
        positions = torch.arange(lengths.max(), device=device)  # guilty: the size is read
        return x + table(positions)

    return encode, (torch.randn(3, 8, 8, device=device),)


def sinusoids_made_each_time(device):
    def encode(x):
        position = torch.arange(x.shape[1], device=device, dtype=torch.float32)[:, None]
        rates = torch.exp(torch.arange(0, 8, 2, device=device) * (-math.log(10000.0) / 8))
        table = torch.zeros(x.shape[1], 8, device=device)
        table[:, 0::2] = torch.sin(position * rates)
        table[:, 1::2] = torch.cos(position * rates)
        return x + table

    return encode, (torch.randn(3, 6, 8, device=device),)

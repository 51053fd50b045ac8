"""Losses and metrics of papers, in the way that their repositories write them."""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional


def _backbone(device: str, width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, width)).to(device)


class ArcFace(nn.Module):
    """Rows with the label -1 get no margin."""

    def __init__(self, scale=64.0, margin=0.5):
        super().__init__()
        self.scale, self.margin = scale, margin

    def forward(self, logits, labels):
        index = torch.where(labels != -1)[0]  # guilty: as many as are labeled
        target = logits[index, labels[index].view(-1)]
        with torch.no_grad():
            target.arccos_()
            logits.arccos_()
            final = target + self.margin
            logits[index, labels[index].view(-1)] = final
            logits.cos_()
        return logits * self.scale


def arcface_drops_unlabeled(device):
    backbone = _backbone(device)
    classes = nn.Parameter(torch.randn(10, 16, device=device))
    margin = ArcFace()
    x = torch.randn(24, 12, device=device)
    labels = torch.randint(-1, 10, (24,), device=device)

    def loss(x, labels):
        cosine = functional.normalize(backbone(x)) @ functional.normalize(classes).T
        logits = margin(cosine.detach().clamp(-0.99, 0.99), labels) + cosine
        return functional.cross_entropy(logits, labels, ignore_index=-1)

    return loss, (x, labels)


class CosFace(nn.Module):
    def __init__(self, classes, scale=30.0, margin=0.35):
        super().__init__()
        self.classes, self.scale, self.margin = classes, scale, margin

    def forward(self, cosine, labels):
        labeled = labels.ge(0)
        shift = torch.zeros_like(cosine)
        shift.scatter_(1, labels.clamp_min(0)[:, None], self.margin)
        shift = shift * labeled[:, None]
        return self.scale * (cosine - shift)


def cosface_keeps_every_row(device):
    backbone = _backbone(device)
    classes = nn.Parameter(torch.randn(10, 16, device=device))
    margin = CosFace(10)
    x = torch.randn(24, 12, device=device)
    labels = torch.randint(-1, 10, (24,), device=device)

    def loss(x, labels):
        cosine = functional.linear(functional.normalize(backbone(x)), functional.normalize(classes))
        return functional.cross_entropy(margin(cosine, labels), labels, ignore_index=-1)

    return loss, (x, labels)


def _distances(e, eps=1e-12):
    square = e.pow(2).sum(1)
    result = (square[:, None] + square[None] - 2 * e @ e.t()).clamp(min=eps).sqrt()
    result = result.clone()
    result.fill_diagonal_(0)
    return result


def relational_distances_of_a_teacher(device):
    student, teacher = _backbone(device), _backbone(device).requires_grad_(False)
    x = torch.randn(10, 12, device=device)

    def loss(x):
        with torch.no_grad():
            t = _distances(teacher(x))
            t = t / t[t > 0].mean()  # guilty: as many as are positive
        s = _distances(student(x))
        s = s / (s.sum() / (s > 0).sum())
        return functional.smooth_l1_loss(s, t)

    return loss, (x,)


def relational_angles_of_a_teacher(device):
    student, teacher = _backbone(device), _backbone(device).requires_grad_(False)
    x = torch.randn(10, 12, device=device)

    def angles(e):
        difference = functional.normalize(e[None] - e[:, None], p=2, dim=2)
        return torch.bmm(difference, difference.transpose(1, 2)).view(-1)

    def loss(x):
        with torch.no_grad():
            target = angles(teacher(x))
        return functional.smooth_l1_loss(angles(student(x)), target)

    return loss, (x,)


def _lovasz_gradient(sorted_truth):
    total = sorted_truth.sum()
    intersection = total - sorted_truth.cumsum(0)
    union = total + (1 - sorted_truth).cumsum(0)
    jaccard = 1.0 - intersection / union
    if len(sorted_truth) > 1:
        jaccard[1:] = jaccard[1:] - jaccard[:-1]
    return jaccard


def lovasz_of_present_classes(device):
    head = nn.Conv2d(3, 4, 1).to(device)
    image = torch.randn(2, 3, 8, 8, device=device)
    labels = torch.randint(4, (2, 8, 8), device=device)

    def loss(image, labels):
        probabilities = head(image).softmax(1).permute(0, 2, 3, 1).reshape(-1, 4)
        flat = labels.view(-1)
        losses = []
        for c in range(4):
            foreground = (flat == c).float()
            if foreground.sum() == 0:  # guilty: asks whether a class is present
                continue
            errors = (foreground - probabilities[:, c]).abs()
            ordered, order = torch.sort(errors, 0, descending=True)
            losses.append(torch.dot(ordered, _lovasz_gradient(foreground[order])))
        return torch.stack(losses).mean()

    return loss, (image, labels)


def lovasz_hinge_of_a_mask(device):
    head = nn.Conv2d(3, 1, 1).to(device)
    image = torch.randn(2, 3, 8, 8, device=device)
    truth = torch.randint(2, (2, 8, 8), device=device).float()

    def flat(logits, truth):
        signs = 2.0 * truth - 1.0
        errors = 1.0 - logits * signs
        ordered, order = torch.sort(errors, dim=0, descending=True)
        return torch.dot(functional.relu(ordered), _lovasz_gradient(truth[order]))

    def loss(image, truth):
        logits = head(image).squeeze(1)
        pairs = zip(logits, truth, strict=True)
        return sum(flat(a.reshape(-1), b.reshape(-1)) for a, b in pairs) / len(logits)

    return loss, (image, truth)


class HarmonizedLoss(nn.Module):
    """GHM-C of mmdetection: rare gradient norms weigh more."""

    def __init__(self, bins=10, momentum=0.75):
        super().__init__()
        self.bins, self.momentum = bins, momentum
        self.register_buffer("edges", torch.arange(bins + 1).float() / bins)
        self.edges[-1] += 1e-6
        self.register_buffer("sums", torch.zeros(bins))

    def forward(self, logits, target):
        weights = torch.zeros_like(logits)
        g = torch.abs(logits.sigmoid().detach() - target)
        total, filled = max(logits.numel(), 1), 0
        for i in range(self.bins):
            inside = (g >= self.edges[i]) & (g < self.edges[i + 1])
            count = inside.sum().item()  # guilty: reads the number in a bin
            if count > 0:
                self.sums[i] = self.momentum * self.sums[i] + (1 - self.momentum) * count
                weights[inside] = total / self.sums[i]
                filled += 1
        weights = weights / max(filled, 1)
        return functional.binary_cross_entropy_with_logits(logits, target, weights) / total


def harmonized_by_counted_bins(device):
    head = nn.Linear(12, 5).to(device)
    loss = HarmonizedLoss().to(device)
    x = torch.randn(16, 12, device=device)
    target = torch.randint(2, (16, 5), device=device).float()
    return lambda x, target: loss(head(x), target), (x, target)


class HarmonizedByOneHot(nn.Module):
    def __init__(self, bins=10, momentum=0.75):
        super().__init__()
        self.bins, self.momentum = bins, momentum
        self.register_buffer("sums", torch.zeros(bins))

    def forward(self, logits, target):
        with torch.no_grad():
            g = (logits.sigmoid() - target).abs()
            bin_of = (g * self.bins).long().clamp_(max=self.bins - 1)
            count = torch.zeros_like(self.sums)
            count.scatter_add_(0, bin_of.flatten(), torch.ones_like(g).flatten())
            present = count > 0
            moved = self.sums * self.momentum + count * (1 - self.momentum)
            self.sums.copy_(torch.where(present, moved, self.sums))
            weights = (g.numel() / self.sums.clamp_min(1e-6))[bin_of]
            weights /= present.sum().clamp_min(1)
        return functional.binary_cross_entropy_with_logits(logits, target, weights)


def harmonized_by_scattered_bins(device):
    head = nn.Linear(12, 5).to(device)
    loss = HarmonizedByOneHot().to(device)
    x = torch.randn(16, 12, device=device)
    target = torch.randint(2, (16, 5), device=device).float()
    return lambda x, target: loss(head(x), target), (x, target)


def residuals_scaled_by_nanmedian(device):
    depth = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)).to(device)
    image = torch.randn(2, 3, 16, 16, device=device)
    truth = torch.rand(2, 1, 16, 16, device=device)
    truth[:, :, ::5] = math.nan

    def loss(image, truth):
        residual = depth(image) - truth
        with torch.no_grad():
            middle = torch.nanmedian(residual)
            spread = (residual - middle).abs().nan_to_num(0.0).mean()
        scaled = (residual / (1.4826 * spread)).nan_to_num(0.0)
        return torch.where(scaled.abs() < 1.345, 0.5 * scaled**2, 1.345 * scaled.abs()).mean()

    return loss, (image, truth)


def residuals_scaled_by_median(device):
    depth = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)).to(device)
    image = torch.randn(2, 3, 16, 16, device=device)
    truth = torch.rand(2, 1, 16, 16, device=device)

    def loss(image, truth):
        prediction = depth(image)
        shift_p, shift_t = prediction.median(), truth.flatten(1).nanmedian(1).values.mean()
        scale_p = (prediction - shift_p).abs().mean()
        scale_t = (truth - shift_t).abs().mean()
        return ((prediction - shift_p) / scale_p - (truth - shift_t) / scale_t).abs().mean()

    return loss, (image, truth)


class EqualizationLoss(nn.Module):
    """EQL v2: gradients of rare classes are scaled by the ratio gathered so far."""

    def __init__(self, classes, gamma=12.0, mu=0.8):
        super().__init__()
        self.gamma, self.mu = gamma, mu
        self.register_buffer("positive", torch.zeros(classes))
        self.register_buffer("negative", torch.zeros(classes))
        self.ratio = torch.ones(classes)

    def forward(self, logits, labels):
        target = functional.one_hot(labels, logits.shape[1]).float()
        margin = self.ratio - self.mu  # guilty: the ratio before the capture
        negative_weight = torch.sigmoid(self.gamma * margin)
        weight = (1 + 4 * (1 - negative_weight)) * target + negative_weight * (1 - target)
        loss = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        with torch.no_grad():
            gradient = (logits.sigmoid() - target).abs() * weight
            self.positive += (gradient * target).sum(0)
            self.negative += (gradient * (1 - target)).sum(0)
            self.ratio = self.positive / (self.negative + 1e-10)  # guilty: rebound in each call
        return (loss * weight).mean()


def equalized_by_a_ratio(device):
    head = nn.Linear(12, 6).to(device)
    loss = EqualizationLoss(6).to(device)
    loss.ratio = loss.ratio.to(device)
    x, labels = torch.randn(16, 12, device=device), torch.randint(6, (16,), device=device)
    return lambda x, labels: loss(head(x), labels), (x, labels)


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


def calibration_error_of_filled_bins(device):
    head = nn.Linear(12, 5).to(device).requires_grad_(False)
    x, labels = torch.randn(64, 12, device=device), torch.randint(5, (64,), device=device)
    bounds = torch.linspace(0, 1, 16, device=device)

    def error(x, labels):
        confidence, prediction = head(x).softmax(1).max(1)
        hits = prediction.eq(labels).float()
        total = torch.zeros(1, device=x.device)
        for low, high in itertools.pairwise(bounds):
            inside = confidence.gt(low) & confidence.le(high)
            share = inside.float().mean()
            if share > 0:  # guilty: asks whether a bin is filled
                accuracy = (hits * inside).sum() / inside.sum()
                mean = (confidence * inside).sum() / inside.sum()
                total += (mean - accuracy).abs() * share
        return total

    return error, (x, labels)


def calibration_error_by_bucketize(device):
    head = nn.Linear(12, 5).to(device).requires_grad_(False)
    x, labels = torch.randn(64, 12, device=device), torch.randint(5, (64,), device=device)
    bounds = torch.linspace(0, 1, 16, device=device)[1:-1].contiguous()

    def error(x, labels):
        confidence, prediction = head(x).softmax(1).max(1)
        hits = prediction.eq(labels).float()
        where = torch.bucketize(confidence, bounds)
        sums = torch.zeros(3, 15, device=x.device)
        sums[0].index_add_(0, where, torch.ones_like(confidence))
        sums[1].index_add_(0, where, confidence)
        sums[2].index_add_(0, where, hits)
        return (sums[1] - sums[2]).abs().sum() / len(x)

    return error, (x, labels)


class CenterLoss(nn.Module):
    def __init__(self, classes, width, rate=0.5):
        super().__init__()
        self.rate = rate
        self.register_buffer("centers", torch.randn(classes, width))

    def forward(self, features, labels):
        gathered = self.centers[labels]
        with torch.no_grad():
            difference = gathered - features
            seen, inverse = torch.unique(  # guilty: as many as there are labels in the batch
                labels, return_inverse=True
            )
            step = torch.zeros(len(seen), features.shape[1], device=features.device)
            step.index_add_(0, inverse, difference)
            self.centers[seen] -= self.rate * step / len(labels)
        return (features - gathered).square().sum(1).mean()


def centers_of_seen_labels(device):
    backbone, loss = _backbone(device), CenterLoss(8, 16).to(device)
    x, labels = torch.randn(20, 12, device=device), torch.randint(8, (20,), device=device)
    return lambda x, labels: loss(backbone(x), labels), (x, labels)


class DenseCenterLoss(CenterLoss):
    def forward(self, features, labels):
        gathered = self.centers[labels]
        with torch.no_grad():
            step = torch.zeros_like(self.centers)
            step.index_add_(0, labels, gathered - features.detach())
            count = torch.zeros(len(self.centers), device=features.device)
            count.index_add_(0, labels, torch.ones_like(labels, dtype=count.dtype))
            self.centers.sub_(self.rate * step / (1 + count)[:, None])
        return (features - gathered).square().sum(1).mean()


def centers_of_all_labels(device):
    backbone, loss = _backbone(device), DenseCenterLoss(8, 16).to(device)
    x, labels = torch.randn(20, 12, device=device), torch.randint(8, (20,), device=device)
    return lambda x, labels: loss(backbone(x), labels), (x, labels)


def _pairwise_iou(a, b):
    (wa, ha), (wb, hb) = (a[:, 2:] - a[:, :2]).unbind(1), (b[:, 2:] - b[:, :2]).unbind(1)
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    w, h = (high - low).clamp(min=0).unbind(2)
    return w * h / ((wa * ha)[:, None] + wb * hb - w * h)


def _boxes(n, device):
    corner = torch.rand(n, 2, device=device) * 20
    return torch.cat([corner, corner + 4 + 8 * torch.rand(n, 2, device=device)], 1)


def anchors_matched_by_dynamic_k(device):
    """SimOTA of YOLOX: each box takes as many anchors as its best overlaps sum to."""
    truth, predicted = _boxes(4, device), _boxes(40, device)
    offset = nn.Parameter(torch.zeros(40, 4, device=device))

    def loss(truth, predicted):
        ious = _pairwise_iou(truth, predicted + offset)
        with torch.no_grad():
            cost = -torch.log(ious + 1e-8)
            matching = torch.zeros_like(cost)
            ks = torch.topk(ious, 10, dim=1).values.sum(1).int().clamp(min=1)
            for g in range(len(truth)):
                _, position = torch.topk(
                    cost[g],
                    k=ks[g].item(),  # guilty: the number of anchors is read
                    largest=False,
                )
                matching[g][position] = 1.0
        return ((1 - ious) * matching).sum() / matching.sum().clamp(min=1)

    return loss, (truth, predicted)


def anchors_matched_by_rank(device):
    truth, predicted = _boxes(4, device), _boxes(40, device)
    offset = nn.Parameter(torch.zeros(40, 4, device=device))

    def loss(truth, predicted):
        ious = _pairwise_iou(truth, predicted + offset)
        with torch.no_grad():
            cost = -torch.log(ious + 1e-8)
            ks = torch.topk(ious, 10, dim=1).values.sum(1).int().clamp(min=1)
            ranks = cost.argsort(1).argsort(1)
            matching = (ranks < ks[:, None]).to(ious.dtype)
            taken = matching.sum(0) > 1
            cheapest = functional.one_hot(cost.argmin(0), len(truth)).T
            matching = torch.where(taken[None], cheapest.to(matching.dtype), matching)
        return ((1 - ious) * matching).sum() / matching.sum().clamp(min=1)

    return loss, (truth, predicted)


class AnnealedSignal:
    """UDA: confident rows of the labeled batch are released little by little."""

    def __init__(self, classes, total):
        self.classes, self.total, self.step = classes, total, 0

    def threshold(self):
        self.step += 1  # guilty: no replay counts
        alpha = math.exp((self.step / self.total - 1) * 5)
        return alpha * (1 - 1 / self.classes) + 1 / self.classes

    def __call__(self, logits, labels):
        losses = functional.cross_entropy(logits, labels, reduction="none")
        correct = logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
        mask = correct.detach().lt(self.threshold()).float()  # guilty: the step of the capture
        return (losses * mask).sum() / mask.sum().clamp(min=1)


def labeled_rows_released_by_a_step(device):
    head, signal = nn.Linear(12, 4).to(device), AnnealedSignal(4, 1000)
    opt = torch.optim.SGD(head.parameters(), 0.1)
    x, labels = torch.randn(16, 12, device=device), torch.randint(4, (16,), device=device)

    def step():
        opt.zero_grad()
        loss = signal(head(x), labels)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def labeled_rows_released_by_a_device_step(device):
    head = nn.Linear(12, 4).to(device)
    opt = torch.optim.SGD(head.parameters(), 0.1)
    x, labels = torch.randn(16, 12, device=device), torch.randint(4, (16,), device=device)
    progress = torch.zeros((), device=device)

    def step():
        opt.zero_grad()
        progress.add_(1 / 1000).clamp_(max=1)
        threshold = torch.exp((progress - 1) * 5) * 0.75 + 0.25
        logits = head(x)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        correct = logits.detach().softmax(1).gather(1, labels[:, None]).squeeze(1)
        mask = (correct < threshold).float()
        loss = (losses * mask).sum() / mask.sum().clamp(min=1)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class RankingMetric:
    """Keeps all scores, as the list states of torchmetrics do."""

    def __init__(self):
        self.scores: list[torch.Tensor] = []
        self.truths: list[torch.Tensor] = []

    def update(self, scores, truth):
        self.scores.append(scores.detach())  # guilty: no replay appends
        self.truths.append(truth)  # guilty: the same

    def compute(self):
        scores, truth = torch.cat(self.scores), torch.cat(self.truths)
        order = scores.argsort(descending=True)
        hits = truth[order].float()
        return (hits.cumsum(0) * (1 - hits)).sum() / (hits.sum() * (1 - hits).sum()).clamp(min=1)


def area_over_all_batches(device):
    scorer, metric = nn.Linear(12, 1).to(device), RankingMetric()
    opt = torch.optim.SGD(scorer.parameters(), 0.05)
    x, truth = torch.randn(32, 12, device=device), torch.randint(2, (32,), device=device)

    def step():
        opt.zero_grad()
        scores = scorer(x).squeeze(1)
        functional.binary_cross_entropy_with_logits(scores, truth.float()).backward()
        opt.step()
        metric.update(scores, truth)
        return metric.compute()

    return step


def area_of_a_batch_by_pairs(device):
    scorer = nn.Linear(12, 1).to(device)
    opt = torch.optim.SGD(scorer.parameters(), 0.05)
    x, truth = torch.randn(32, 12, device=device), torch.randint(2, (32,), device=device)

    def step():
        opt.zero_grad()
        scores = scorer(x).squeeze(1)
        pairs = truth[:, None].gt(truth[None]).to(scores.dtype)
        margin = scores[:, None] - scores[None]
        loss = (functional.softplus(-margin) * pairs).sum() / pairs.sum().clamp(min=1)
        loss.backward()
        opt.step()
        area = ((margin > 0) * pairs).sum() / pairs.sum().clamp(min=1)
        return loss.detach(), area

    return step

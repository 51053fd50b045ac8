"""Losses with lengths, masks, annealed weights and histories."""

from collections import deque

import torch
from torch import nn

UPDATES = 0


def ctc_of_device_lengths(device):
    head = nn.Linear(12, 20).to(device)
    targets = torch.randint(1, 20, (3, 6), device=device)
    frames = torch.full((3,), 15, device=device)
    letters = torch.tensor([6, 4, 5], device=device)

    def loss(features):
        logp = head(features).log_softmax(-1)
        return nn.functional.ctc_loss(logp, targets, frames, letters)  # guilty: copies the lengths

    return loss, (torch.randn(15, 3, 12, device=device),)


def gaussian_likelihood_checks_its_variance(device):
    net = nn.Linear(8, 2).to(device)
    target = torch.randn(16, 1, device=device)

    def loss(x):
        mean, raw = net(x).chunk(2, dim=-1)
        variance = nn.functional.softplus(raw) + 1e-4
        return nn.functional.gaussian_nll_loss(mean, target, variance)  # guilty: checks it

    return loss, (torch.randn(16, 8, device=device),)


def kl_is_annealed_by_a_global(device):
    encoder, decoder = nn.Linear(10, 8).to(device), nn.Linear(4, 10).to(device)
    x = torch.randn(6, 10, device=device)
    opt = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)

    def step():
        global UPDATES
        UPDATES += 1  # guilty: counts on the host
        mean, logvar = encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(-1).mean()
        beta = min(1.0, UPDATES / 1000)
        reconstruction = nn.functional.mse_loss(decoder(z), x)
        loss = reconstruction + beta * kl  # guilty: the weight of the KL is frozen
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def kl_is_annealed_on_the_device(device):
    """The number of updates is a tensor; free bits and the weight follow from it."""
    encoder, decoder = nn.Linear(10, 8).to(device), nn.Linear(4, 10).to(device)
    x = torch.randn(6, 10, device=device)
    opt = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    updates = torch.zeros((), dtype=torch.long, device=device)

    def step():
        updates.add_(1)
        mean, logvar = encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp())
        kl = torch.maximum(kl.mean(0), torch.full_like(kl[0], 0.02)).sum()
        beta = (updates.float() / 1000).clamp(max=1.0)
        loss = nn.functional.mse_loss(decoder(z), x) + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def mask_as_long_as_the_longest(device):
    net = nn.Linear(8, 8).to(device)
    lengths = torch.tensor([5, 9, 7], device=device)

    def loss(x):
        y = net(x)
        steps = torch.arange(0, lengths.max(), device=device)  # guilty: ends at a tensor
        mask = steps[None] < lengths[:, None]
        return ((y - x).square().mean(-1)[:, : mask.shape[1]] * mask).sum() / mask.sum()

    return loss, (torch.randn(3, 9, 8, device=device),)


def normalized_by_a_window_of_losses(device):
    net = nn.Linear(8, 4).to(device)
    x, y = torch.randn(6, 8, device=device), torch.randn(6, 4, device=device)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    window = deque(maxlen=4)

    def step():
        loss = nn.functional.smooth_l1_loss(net(x), y)
        window.append(loss.detach())  # guilty: nothing is appended by a replay
        average = torch.stack(list(window)).mean()  # guilty: the same losses are read each time
        opt.zero_grad()
        (loss / average).backward()
        opt.step()
        return average

    return step


def smoothed_labels_with_padding(device):
    """Padding is masked in place, and the number of tokens divides on the device."""
    net = nn.Linear(12, 30).to(device)
    target = torch.randint(0, 30, (4, 7), device=device)
    target[:, 5:] = 1

    def loss(x):
        logp = nn.functional.log_softmax(net(x), dim=-1)
        labels = target.unsqueeze(-1) if target.dim() == logp.dim() - 1 else target
        nll = -logp.gather(dim=-1, index=labels)
        smooth = -logp.sum(dim=-1, keepdim=True)
        pad = labels.eq(1)
        nll = nll.masked_fill(pad, 0.0)
        smooth.masked_fill_(pad, 0.0)
        tokens = (~pad).sum()
        return ((1.0 - 0.1 - 0.1 / 29) * nll.sum() + 0.1 / 29 * smooth.sum()) / tokens

    return loss, (torch.randn(4, 7, 12, device=device),)


def contrast_without_the_diagonal(device):
    """A boolean mask is assigned a Python number, which fills without counting its elements."""
    net = nn.Linear(10, 6).to(device)
    diagonal = torch.eye(12, dtype=torch.bool, device=device)
    positives = torch.arange(12, device=device).roll(6)

    def loss(x):
        z = nn.functional.normalize(net(torch.cat([x, x + 0.1])), dim=-1)
        similarity = z @ z.T / 0.5
        similarity[diagonal] = float("-inf")
        return nn.functional.cross_entropy(similarity, positives)

    return loss, (torch.randn(6, 10, device=device),)


def groups_are_repeated_to_a_known_size(device):
    """repeat_interleave with counts of the device, but the size of its output is given."""
    net = nn.Linear(5, 5).to(device)
    counts = torch.tensor([2, 4, 1, 3], device=device)

    def loss(x):
        prompts = net(x)
        samples = torch.repeat_interleave(prompts, counts, dim=0, output_size=10)
        owner = torch.repeat_interleave(torch.arange(4, device=device), counts, output_size=10)
        rewards = samples.tanh().sum(-1)
        mean = torch.zeros(4, device=device).index_add_(0, owner, rewards) / counts
        return (rewards - mean[owner]).square().mean()

    return loss, (torch.randn(4, 5, device=device),)


def calibration_by_histogram(device):
    """histc with given limits and bucketize count on the device."""
    net = nn.Linear(9, 5).to(device)
    labels = torch.randint(5, (32,), device=device)
    edges = torch.linspace(0, 1, 11, device=device)

    @torch.no_grad()
    def error(x):
        confidence, predicted = net(x).softmax(-1).max(-1)
        correct = predicted.eq(labels).float()
        counts = torch.histc(confidence, bins=10, min=0, max=1)
        bins = torch.bucketize(confidence, edges[1:-1])
        gap = torch.zeros(10, device=device).scatter_add_(0, bins, confidence - correct)
        return gap.abs().sum() / counts.sum()

    return error, (torch.randn(32, 9, device=device),)

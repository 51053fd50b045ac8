"""Steps of diffusion samplers, losses with masks and matching, distributions, message passing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import distributions, nn
from torch.nn import functional


def _net(device):
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).to(device).eval()


# The schedule is on the device, and the last step is found by its value.
def euler_loop_asks_for_the_end(device):
    net, sigmas = _net(device), torch.linspace(1, 0, 5, device=device)

    @torch.no_grad()
    def sample(x):
        for i in range(len(sigmas) - 1):
            d = (x - net(x)) / sigmas[i]
            if sigmas[i + 1] == 0:  # guilty: the truth of a tensor of the device
                x = x - d * sigmas[i]
            else:
                x = x + d * (sigmas[i + 1] - sigmas[i])
        return x

    return sample, (torch.randn(2, 8, device=device),)


# The same loop over Python numbers: each is a constant of the captured kernels.
def euler_loop_over_numbers(device):
    net, sigmas = _net(device), np.linspace(1, 0, 5).tolist()

    @torch.no_grad()
    def sample(x):
        for sigma, following in itertools.pairwise(sigmas):
            d = (x - net(x)) / sigma
            x = x - d * sigma if following == 0 else x + d * (following - sigma)
        return x

    return sample, (torch.randn(2, 8, device=device),)


class _Scheduler:
    def __init__(self, device, steps=1000):
        self.alphas = torch.linspace(0.999, 0.01, steps, device=device)
        self.index = None

    def set_timesteps(self):
        self.index = 0

    def step(self, noise, x):
        if self.index is None:
            self.index = 0
        alpha = self.alphas[self.index]
        self.index = (self.index + 1) % len(self.alphas)  # guilty: no replay advances it
        return (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()


# One call is one step, and the index is a number of the host.
def one_step_of_a_scheduler(device):
    net, scheduler = _net(device), _Scheduler(device)

    @torch.no_grad()
    def step(x):
        return scheduler.step(net(x), x)

    return step, (torch.randn(2, 8, device=device),)


class _ResetScheduler(_Scheduler):
    def step(self, noise, x):
        alpha = self.alphas[self.index]
        self.index += 1
        return (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()


# All steps are in the graph: each call starts at zero and ends at the same index.
def all_steps_of_a_scheduler(device):
    net, scheduler = _net(device), _ResetScheduler(device)

    @torch.no_grad()
    def sample(x):
        scheduler.set_timesteps()
        for _ in range(4):
            x = scheduler.step(net(x), x)
        return x

    return sample, (torch.randn(2, 8, device=device),)


# A solver of second order keeps the last two outputs, which are new tensors in each call.
def multistep_solver_keeps_outputs(device):
    net = _net(device)
    outputs = [torch.zeros(2, 8, device=device), torch.zeros(2, 8, device=device)]

    @torch.no_grad()
    def step(x):
        outputs[:] = [outputs[1], net(x)]  # guilty: the replay reads the outputs of the warm-up
        return x - 0.1 * (1.5 * outputs[1] - 0.5 * outputs[0])  # guilty: reads them

    return step, (torch.randn(2, 8, device=device),)


# The same solver copies: the last output lies at one address.
def multistep_solver_copies_outputs(device):
    net, last = _net(device), torch.zeros(2, 8, device=device)

    @torch.no_grad()
    def step(x):
        output = net(x)
        y = x - 0.1 * (1.5 * output - 0.5 * last)
        last.copy_(output)
        return y

    return step, (torch.randn(2, 8, device=device),)


# The matching of a set prediction is computed by scipy or numpy on the host.
def matching_on_the_host(device):
    head, targets = nn.Linear(8, 4).to(device), torch.randn(3, 4, device=device)

    def loss(x):
        boxes = head(x)
        cost = torch.cdist(boxes, targets, p=1).detach().cpu().numpy()  # guilty: waits for a copy
        rows = np.argsort(cost, axis=0)[0]
        return functional.l1_loss(torch.stack([boxes[int(row)] for row in rows]), targets)

    return loss, (torch.randn(5, 8, device=device),)


# Assignment on the device: each target takes its nearest, and the k best by a mask.
def matching_on_the_device(device):
    head, targets = nn.Linear(8, 4).to(device), torch.randn(3, 4, device=device)

    def loss(x):
        boxes = head(x)
        cost = torch.cdist(boxes, targets, p=1).detach()
        k = (1 / (1 + cost)).topk(3, dim=0).values.sum(0).int().clamp(min=1)
        rank = cost.argsort(0).argsort(0)
        matched = (rank < k).float()
        each = (boxes.unsqueeze(1) - targets).abs().sum(-1)
        return (each * matched).sum() / matched.sum().clamp(min=1)

    return loss, (torch.randn(5, 8, device=device),)


# Averages over the classes that occur: `unique` has a result of unknown size.
def dice_of_present_classes(device):
    head, target = nn.Conv2d(3, 4, 1).to(device), torch.randint(4, (2, 5, 5), device=device)

    def loss(x):
        p, total = head(x).softmax(1), 0.0
        for c in torch.unique(target):  # guilty: the number of classes is read on the host
            mask = (target == c).float()
            chosen = p.index_select(1, c.view(1)).squeeze(1)
            total = total + 1 - 2 * (chosen * mask).sum() / (chosen.sum() + mask.sum())
        return total

    return loss, (torch.randn(2, 3, 5, 5, device=device),)


# All classes, and the absent ones have weight zero.
def dice_of_all_classes(device):
    head, target = nn.Conv2d(3, 4, 1).to(device), torch.randint(4, (2, 5, 5), device=device)
    classes = torch.arange(4, device=device).view(1, 4, 1, 1)

    def loss(x):
        p = head(x).softmax(1)
        mask = (target.unsqueeze(1) == classes).float()
        present = (mask.sum((0, 2, 3)) > 0).float()
        dice = 1 - 2 * (p * mask).sum((0, 2, 3)) / (p.sum((0, 2, 3)) + mask.sum((0, 2, 3)))
        return (dice * present).sum() / present.sum().clamp(min=1)

    return loss, (torch.randn(2, 3, 5, 5, device=device),)


# The constructor factors the covariance, and checks the result of the factorisation.
def normal_by_its_covariance(device):
    root = torch.randn(3, 3, device=device) / 4
    eye = torch.eye(3, device=device)

    @torch.no_grad()
    def log_prob(x):
        covariance = root @ root.T + eye
        normal = distributions.MultivariateNormal(
            x.mean(0), covariance_matrix=covariance, validate_args=False
        )  # guilty: `cholesky` reads its error code
        return normal.log_prob(x)

    return log_prob, (torch.randn(4, 3, device=device),)


# With the factor nothing is checked: `validate_args=False`, and solves by triangles.
def normal_by_its_factor(device):
    raw = nn.Parameter(torch.randn(3, 3, device=device) / 4)

    def log_prob(x):
        factor = raw.tril(-1) + torch.diag_embed(functional.softplus(raw.diagonal()))
        normal = distributions.MultivariateNormal(
            torch.zeros_like(x[0]), scale_tril=factor, validate_args=False
        )
        return normal.log_prob(x).mean()

    return log_prob, (torch.randn(4, 3, device=device),)


# The default of `validate_args` is on: the constraint of the concentration is read on the host.
def dirichlet_policy(device):
    head = nn.Linear(8, 4).to(device)

    def loss(x):
        policy = distributions.Dirichlet(
            functional.softplus(head(x)) + 0.1
        )  # guilty: checks its arguments
        return policy.entropy().mean()

    return loss, (torch.randn(5, 8, device=device),)


# Closed form, no checks, and sampling by noise of the device.
def divergence_of_two_normals(device):
    head = nn.Linear(8, 8).to(device)

    def loss(x):
        mean, log_std = head(x).chunk(2, -1)
        q = distributions.Normal(mean, log_std.exp(), validate_args=False)
        p = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean), validate_args=False)
        z = q.rsample()
        return (distributions.kl_divergence(q, p).sum(-1) + z.square().sum(-1)).mean()

    return loss, (torch.randn(5, 8, device=device),)


# The points of the sequence are drawn on the host, and copied from pageable memory.
def quasi_random_elbo(device):
    head, engine = nn.Linear(8, 8).to(device), torch.quasirandom.SobolEngine(4, scramble=True)

    def loss(x):
        mean, log_std = head(x).chunk(2, -1)
        u = engine.draw(5).to(x.device)  # guilty: a copy from pageable memory
        z = mean + log_std.exp() * torch.erfinv(u * 1.98 - 0.99) * math.sqrt(2)
        return z.square().mean()

    return loss, (torch.randn(5, 8, device=device),)


# Drops edges by a weight of zero, and not by an index of unknown length.
def edges_dropped_by_weight(device):
    edges = torch.randint(6, (2, 14), device=device)
    linear = nn.Linear(8, 8).to(device)

    def propagate(x):
        keep = torch.rand(edges.shape[1], 1, device=x.device) > 0.2
        messages = linear(x)[edges[0]] * keep / 0.8
        return torch.zeros_like(x).index_add(0, edges[1], messages)

    return propagate, (torch.randn(6, 8, device=device),)


# Edges are dropped by a mask, whose true entries are counted on the host.
def edges_dropped_by_index(device):
    edges = torch.randint(6, (2, 14), device=device)
    linear = nn.Linear(8, 8).to(device)

    def propagate(x):
        keep = torch.rand(edges.shape[1], device=x.device) > 0.2
        source, target = edges.T[keep].T  # guilty: the number of edges is read on the host
        return torch.zeros_like(x).index_add(0, target, linear(x)[source])

    return propagate, (torch.randn(6, 8, device=device),)


class _Aggregation(nn.Module):
    """Mean, maximum and deviation of the messages, scaled by the degree."""

    def __init__(self, edges, nodes):
        super().__init__()
        self.register_buffer("edges", edges)
        self.nodes, self.post = nodes, nn.Linear(24, 8)
        degree = torch.bincount(edges[1], minlength=nodes).float().add(1).log()
        self.average = float(degree.mean())
        self.register_buffer("degree", degree.unsqueeze(-1))

    def forward(self, x):
        source, target = self.edges
        index, zero = target.unsqueeze(-1).expand(-1, 8), x.new_zeros(self.nodes, 8)
        mean = zero.scatter_reduce(0, index, x[source], "mean", include_self=False)
        top = zero.scatter_reduce(0, index, x[source], "amax", include_self=False)
        square = zero.scatter_reduce(0, index, x[source].square(), "mean", include_self=False)
        deviation = (square - mean.square()).relu().add(1e-5).sqrt()
        return self.post(torch.cat((mean, top, deviation), -1) * (self.degree / self.average))


# The degrees are read once, when the layer is built.
def aggregation_of_degrees(device):
    layer = _Aggregation(torch.randint(6, (2, 14)), 6).to(device)
    return layer, (torch.randn(6, 8, device=device),)


# The learned temperature of the noise is annealed by a number in a dictionary of settings.
def score_matching_with_settings(device):
    net, settings = _net(device), {"sigma": 1.0, "decay": 0.9999, "least": 0.01}

    def loss(x):
        noise = torch.randn_like(x)
        sigma = settings["sigma"]
        settings["sigma"] = max(sigma * settings["decay"], settings["least"])  # guilty: host
        return ((net(x + sigma * noise) * sigma + noise) ** 2).mean()

    return loss, (torch.randn(4, 8, device=device),)


# The levels are drawn on the device, and looked up there.
def score_matching_with_drawn_levels(device):
    net, levels = _net(device), torch.logspace(0, -2, 10, device=device)

    def loss(x):
        sigma = levels[torch.randint(10, (len(x), 1), device=x.device)]
        noise = torch.randn_like(x)
        return ((net(x + sigma * noise) * sigma + noise) ** 2).mean()

    return loss, (torch.randn(4, 8, device=device),)

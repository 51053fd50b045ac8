"""Groups of completions, tasks, clients and chains: updates that many parts take part in."""

import random

import numpy
import torch
from torch import nn
from torch.nn import functional


def _policy(device, width=24, tokens=32):
    torch.manual_seed(0)
    embed, body, head = (
        nn.Embedding(tokens, width),
        nn.Linear(width, width),
        nn.Linear(width, tokens),
    )
    return nn.Sequential(embed, body, nn.Tanh(), head).to(device)


def groups_without_a_signal_are_left_out(device):
    """Groups whose completions all have the same reward teach nothing; they are filtered."""
    policy = _policy(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, capturable=True)
    tokens = torch.randint(0, 32, (6, 4, 12), device=device)
    rewards = torch.randint(0, 2, (6, 4), device=device).float()
    old = torch.full((6, 4, 11), -3.4, device=device)

    def step():
        spread = rewards.std(dim=1)
        informative = spread > 1e-6
        kept = tokens[informative]  # guilty: as many groups as are informative
        advantage = rewards - rewards.mean(1, keepdim=True)
        advantage = (advantage / (spread.unsqueeze(1) + 1e-6))[informative]
        logits = policy(kept[..., :-1]).log_softmax(-1)
        new = logits.gather(-1, kept[..., 1:].unsqueeze(-1)).squeeze(-1)
        ratio = (new - old[informative]).exp()
        weight = advantage.unsqueeze(-1)
        loss = -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.28) * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def baseline_of_the_other_completions(device):
    """Each completion is compared with the mean of the others of its prompt; padding is masked."""
    policy = _policy(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, capturable=True)
    tokens = torch.randint(1, 32, (6, 4, 12), device=device)
    lengths = torch.randint(4, 13, (6, 4, 1), device=device)
    rewards = torch.randn(6, 4, device=device)

    def step():
        mask = (torch.arange(11, device=device) < lengths - 1).float()
        others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
        logits = policy(tokens[..., :-1]).log_softmax(-1)
        chosen = logits.gather(-1, tokens[..., 1:].unsqueeze(-1)).squeeze(-1)
        likelihood = (chosen * mask).sum(-1) / mask.sum(-1).clamp_min(1)
        loss = -((rewards - others) * likelihood).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


class ProjectedGradients:
    """Conflicting gradients of tasks are projected, in a random order of the tasks."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate

    def step(self, losses):
        flat = []
        for loss in losses:
            gradients = torch.autograd.grad(loss, self.parameters, retain_graph=True)
            flat.append(torch.cat([gradient.flatten() for gradient in gradients]))
        combined = torch.zeros_like(flat[0])
        for task, gradient in enumerate(flat):
            others = [other for i, other in enumerate(flat) if i != task]
            random.shuffle(others)  # guilty: the order of the captured step
            for other in others:
                dot = torch.dot(gradient, other)
                gradient = gradient - dot.clamp(max=0) / other.square().sum() * other
            combined += gradient
        with torch.no_grad():
            for parameter, part in zip(
                self.parameters,
                combined.split([each.numel() for each in self.parameters]),
                strict=False,
            ):
                parameter.sub_(part.view_as(parameter), alpha=self.rate)


def gradients_are_projected_in_a_random_order(device):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(10, 24), nn.Tanh()).to(device)
    heads = nn.ModuleList(nn.Linear(24, 1) for _ in range(4)).to(device)
    for parameter in heads.parameters():
        parameter.requires_grad_(False)
    optimizer = ProjectedGradients(trunk.parameters(), 0.05)
    x, targets = torch.randn(32, 10, device=device), torch.randn(4, 32, 1, device=device)

    def step():
        hidden = trunk(x)
        losses = [
            functional.mse_loss(head(hidden), y) for head, y in zip(heads, targets, strict=False)
        ]
        optimizer.step(losses)
        return torch.stack(losses).detach()

    return step


class Pool:
    """Samples of a persistent chain; a few of them start again from noise in each step."""

    def __init__(self, size, width, device, restart=0.05):
        self.samples = torch.rand(size, width, device=device)
        self.restart = restart

    def draw(self):
        again = numpy.random.rand(len(self.samples), 1) < self.restart
        again = torch.from_numpy(again).to(
            self.samples.device
        )  # guilty: drawn and copied at capture
        return torch.where(again, torch.rand_like(self.samples), self.samples)


def chains_start_again_by_chance(device):
    torch.manual_seed(0)
    energy = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-4, capturable=True)
    pool = Pool(64, 8, device)
    real = torch.rand(64, 8, device=device)

    def step():
        fake = pool.draw()
        for _ in range(5):
            fake = fake.detach().requires_grad_()
            (slope,) = torch.autograd.grad(energy(fake).sum(), fake)
            fake = fake - 0.1 * slope.clamp(-0.03, 0.03) + 0.005 * torch.randn_like(fake)
        pool.samples.copy_(fake.detach())
        loss = energy(real).mean() - energy(fake.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def clients_are_averaged_in_a_round(device):
    """A round of federated averaging: each client trains a copy, and the server loads the mean."""
    torch.manual_seed(0)

    def build():
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)

    server, clients = build(), [build() for _ in range(3)]
    data = [torch.randn(20, 6, device=device) for _ in clients]
    labels = [torch.randint(0, 2, (20,), device=device) for _ in clients]
    shares = torch.tensor([0.5, 0.3, 0.2], device=device)

    def communicate():
        losses = []
        for client, x, y in zip(clients, data, labels, strict=False):
            client.load_state_dict(server.state_dict())
            for _ in range(2):
                loss = functional.cross_entropy(client(x), y)
                gradients = torch.autograd.grad(loss, list(client.parameters()))
                with torch.no_grad():
                    torch._foreach_add_(list(client.parameters()), gradients, alpha=-0.1)
            losses.append(loss.detach())
        states = [client.state_dict() for client in clients]
        averaged = {
            name: sum(share * state[name] for share, state in zip(shares, states, strict=False))
            for name in server.state_dict()
        }
        server.load_state_dict(averaged)
        return torch.stack(losses)

    return communicate


class OuterOptimizer:
    """Local steps of a worker; after some of them the outer step moves the shared weights."""

    def __init__(self, worker, every=4, rate=0.7, momentum=0.9):
        self.worker = list(worker.parameters())
        self.shared = [parameter.detach().clone() for parameter in self.worker]
        self.velocity = [torch.zeros_like(each) for each in self.shared]
        self.every, self.rate, self.momentum = every, rate, momentum
        self.local = 0

    @torch.no_grad()
    def step(self):
        self.local += 1
        if self.local < self.every:  # guilty: the answer of the captured step
            return
        self.local = 0
        delta = torch._foreach_sub(self.shared, self.worker)
        torch._foreach_mul_(self.velocity, self.momentum)
        torch._foreach_add_(self.velocity, delta)
        torch._foreach_add_(self.shared, self.velocity, alpha=-self.rate)
        torch._foreach_copy_(self.worker, self.shared)


def workers_meet_after_some_local_steps(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 4)).to(device)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    outer = OuterOptimizer(model)
    x, y = torch.randn(16, 12, device=device), torch.randint(0, 4, (16,), device=device)

    def step():
        inner.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        inner.step()
        outer.step()
        return loss

    return step


def images_are_cut_and_mixed(device):
    """CutMix as in the authors' code: a box from the host's generator."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).to(device)
    images = torch.rand(8, 3, 16, 16, device=device)
    images *= torch.arange(1.0, 9.0, device=device)[:, None, None, None]
    labels = torch.randint(0, 5, (8,), device=device)

    def box(height, width, share):
        cut = numpy.sqrt(1.0 - share)
        h, w = int(height * cut), int(width * cut)
        y, x = numpy.random.randint(height), numpy.random.randint(width)  # guilty: drawn once
        rows = numpy.clip([y - h // 2, y + h // 2], 0, height)
        columns = numpy.clip([x - w // 2, x + w // 2], 0, width)
        return slice(*rows), slice(*columns)

    def step():
        share = numpy.random.beta(1.0, 1.0)  # guilty: drawn once
        order = torch.randperm(8, device=device)
        rows, columns = box(16, 16, share)
        mixed = images.clone()
        mixed[:, :, rows, columns] = images[order][
            :, :, rows, columns
        ]  # guilty: the box of the capture
        share = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / 256
        logits = model(mixed)
        first = functional.cross_entropy(logits, labels)
        second = functional.cross_entropy(logits, labels[order])
        return share * first + (1 - share) * second  # guilty: the share of the capture

    return step


class EchoCanceller:
    """Normalized least mean squares: the taps adapt in place, block by block."""

    def __init__(self, taps, device):
        self.taps = torch.zeros(taps, device=device)
        self.history = torch.zeros(taps, device=device)

    def __call__(self, far, near):
        cleaned = []
        for loudspeaker, microphone in zip(far.unbind(), near.unbind(), strict=False):
            self.history.copy_(torch.cat([loudspeaker.view(1), self.history[:-1]]))
            error = microphone - torch.dot(self.taps, self.history)
            power = self.history.square().sum() + 1e-3
            self.taps.addcmul_(self.history, error / power, value=0.5)
            cleaned.append(error)
        return torch.stack(cleaned)


def echo_is_cancelled_sample_by_sample(device):
    torch.manual_seed(0)
    cancel = EchoCanceller(32, device)
    far = torch.randn(24, device=device)
    near = 0.6 * far.roll(3) + 0.01 * torch.randn(24, device=device)

    @torch.no_grad()
    def block():
        return cancel(far, near)

    return block

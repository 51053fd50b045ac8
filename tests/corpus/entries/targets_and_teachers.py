"""Self-supervision, generative models and reinforcement learning, with the state that they keep."""

import copy
import math
import random
from multiprocessing import Value

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def _mlp(device: str, inputs: int = 12, outputs: int = 16) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(inputs, 32), nn.GELU(), nn.Linear(32, outputs))
    return net.to(device)


class DinoLoss(nn.Module):
    def __init__(self, width, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(1, width))

    def forward(self, student, teacher):
        target = functional.softmax((teacher - self.center) / 0.04, -1).detach()
        loss = -(target * functional.log_softmax(student / 0.1, -1)).sum(-1).mean()
        self.update_center(teacher)
        return loss

    @torch.no_grad()
    def update_center(self, teacher):
        batch = teacher.mean(0, keepdim=True)
        self.center = (  # guilty: rebound in each call
            self.center * self.momentum + batch * (1 - self.momentum)
        )


class DinoLossInPlace(DinoLoss):
    @torch.no_grad()
    def update_center(self, teacher):
        self.center.lerp_(teacher.mean(0, keepdim=True), 1 - self.momentum)


def _distillation(device, loss_type):
    student = _mlp(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    loss_fn = loss_type(16).to(device)
    opt = torch.optim.SGD(student.parameters(), 0.05)
    views = torch.randn(2, 16, 12, device=device)

    def step():
        opt.zero_grad()
        loss = loss_fn(student(views[0]), teacher(views[1]))
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
        return loss.detach()

    return step


def center_of_teachers_is_rebound(device):
    return _distillation(device, DinoLoss)


def center_of_teachers_moves_in_place(device):
    return _distillation(device, DinoLossInPlace)


class SupportSet(nn.Module):
    """NNCLR: the nearest earlier embedding is the positive."""

    def __init__(self, size, width):
        super().__init__()
        self.size = size
        self.register_buffer("entries", functional.normalize(torch.randn(size, width)))

    def forward(self, z):
        nearest = self.entries[(z @ self.entries.T).argmax(1)]
        with torch.no_grad():
            self.entries = torch.cat([z.detach(), self.entries])[: self.size]  # guilty: rebound
        return nearest


def neighbours_in_a_support_set(device):
    encoder, support = _mlp(device), SupportSet(64, 16).to(device)
    opt = torch.optim.SGD(encoder.parameters(), 0.05)
    views = torch.randn(2, 8, 12, device=device)

    def step():
        opt.zero_grad()
        a, b = (functional.normalize(encoder(v), dim=1) for v in views)
        logits = support(a) @ b.T / 0.1
        loss = functional.cross_entropy(logits, torch.arange(8, device=logits.device))
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class CrossBatchMemory(nn.Module):
    """XBM with its pointer on the device; unfilled places have the label -1."""

    def __init__(self, size, width):
        super().__init__()
        self.size = size
        self.register_buffer("features", torch.zeros(size, width))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, features, labels):
        places = (self.pointer + torch.arange(len(features), device=features.device)) % self.size
        self.features.index_copy_(0, places, features.detach())
        self.labels.index_copy_(0, places, labels)
        self.pointer.add_(len(features)).remainder_(self.size)


def memory_across_batches(device):
    encoder, memory = _mlp(device), CrossBatchMemory(48, 16).to(device)
    opt = torch.optim.SGD(encoder.parameters(), 0.05)
    x, labels = torch.randn(10, 12, device=device), torch.randint(3, (10,), device=device)

    def step():
        opt.zero_grad()
        z = functional.normalize(encoder(x), dim=1)
        memory.enqueue(z, labels)
        similarity = z @ memory.features.T
        same = labels[:, None] == memory.labels[None]
        known = memory.labels[None] >= 0
        pull = ((1 - similarity) * same).sum(1)
        push = (functional.relu(similarity - 0.5) * (known & ~same)).sum(1)
        loss = (pull + push).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class BlockMask:
    """I-JEPA: workers share a counter, which seeds the blocks of a batch."""

    def __init__(self, height, width):
        self.height, self.width = height, width
        self._itr_counter = Value("i", -1)

    def step(self):
        with self._itr_counter.get_lock():
            self._itr_counter.value += 1
            return self._itr_counter.value

    def __call__(self, patches):
        g = torch.Generator()
        g.manual_seed(self.step())
        scale = 0.3 + 0.4 * torch.rand(1, generator=g).item()  # guilty: drawn on the host
        h, w = max(1, int(scale * self.height)), max(1, int(scale * self.width))
        top = torch.randint(0, self.height - h + 1, (1,), generator=g)  # guilty: the same
        left = torch.randint(0, self.width - w + 1, (1,), generator=g)  # guilty: the same
        mask = torch.ones(self.height, self.width, device=patches.device)
        mask[top : top + h, left : left + w] = 0  # guilty: the block of the capture
        return patches * mask.flatten()[None, :, None]


def blocks_seeded_by_a_shared_counter(device):
    encoder, masked = _mlp(device), BlockMask(6, 6)
    target = copy.deepcopy(encoder).requires_grad_(False)
    opt = torch.optim.SGD(encoder.parameters(), 0.05)
    patches = torch.randn(4, 36, 12, device=device)

    def step():
        opt.zero_grad()
        loss = functional.smooth_l1_loss(encoder(masked(patches)), target(patches))
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def patches_masked_by_sorted_noise(device):
    """MAE: a fixed share is kept, which ones is drawn on the device."""
    encoder, decoder = _mlp(device), _mlp(device, 16, 12)
    token = nn.Parameter(torch.zeros(1, 1, 16, device=device))
    opt = torch.optim.AdamW(
        [*encoder.parameters(), *decoder.parameters(), token], lr=1e-3, capturable=True
    )
    patches = torch.randn(4, 36, 12, device=device)

    def step():
        opt.zero_grad()
        n, length, width = patches.shape
        keep = int(length * 0.25)
        shuffle = torch.rand(n, length, device=patches.device).argsort(1)
        restore = shuffle.argsort(1)
        visible = patches.gather(1, shuffle[:, :keep, None].expand(-1, -1, width))
        latent = encoder(visible)
        full = torch.cat([latent, token.expand(n, length - keep, -1)], 1)
        full = full.gather(1, restore[..., None].expand(-1, -1, 16))
        mask = (restore >= keep).float()
        error = (decoder(full) - patches).square().mean(-1)
        loss = (error * mask).sum() / mask.sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class SecondMomentSampler:
    """guided-diffusion: timesteps are drawn by the loss that they had."""

    def __init__(self, timesteps, history=4):
        self.timesteps = timesteps
        self.history = np.ones((timesteps, history), dtype=np.float64)

    def sample(self, batch, device):
        weights = np.sqrt(np.mean(self.history**2, axis=-1))
        p = weights / weights.sum()
        chosen = np.random.choice(self.timesteps, size=(batch,), p=p)
        t = torch.from_numpy(chosen).long().to(device)  # guilty: copied from pageable memory
        factor = torch.from_numpy(1 / (self.timesteps * p[chosen])).float()
        return t, factor.to(device)  # guilty: the same

    def update(self, t, losses):
        for step, loss in zip(t.tolist(), losses.tolist(), strict=True):  # guilty: read
            self.history[step, :-1] = self.history[step, 1:]
            self.history[step, -1] = loss


def timesteps_drawn_by_second_moments(device):
    net, sampler = _mlp(device, 13, 12), SecondMomentSampler(20)
    alphas = torch.linspace(0.99, 0.05, 20, device=device)
    opt = torch.optim.SGD(net.parameters(), 0.01)
    x = torch.randn(8, 12, device=device)

    def step():
        opt.zero_grad()
        t, factor = sampler.sample(len(x), x.device)
        noise, a = torch.randn_like(x), alphas[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        losses = (net(torch.cat([noisy, t[:, None] / 20], 1)) - noise).square().mean(1)
        (losses * factor).mean().backward()
        opt.step()
        sampler.update(t, losses.detach())
        return losses.detach()

    return step


def timesteps_drawn_by_a_device_history(device):
    net = _mlp(device, 13, 12)
    history = torch.ones(20, device=device)
    alphas = torch.linspace(0.99, 0.05, 20, device=device)
    opt = torch.optim.SGD(net.parameters(), 0.01)
    x = torch.randn(8, 12, device=device)

    def step():
        opt.zero_grad()
        p = history.sqrt() / history.sqrt().sum()
        draws = torch.rand(len(x), device=x.device)
        t = torch.searchsorted(p.cumsum(0), draws).clamp_(max=19)
        noise, a = torch.randn_like(x), alphas[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        losses = (net(torch.cat([noisy, t[:, None] / 20], 1)) - noise).square().mean(1)
        (losses / (20 * p[t])).mean().backward()
        opt.step()
        history.scatter_reduce_(0, t, losses.detach().square(), "mean", include_self=True)
        return losses.detach()

    return step


def _karras(n, device, low=0.002, high=80.0, rho=7.0):
    ramp = torch.arange(n, device=device) / (n - 1)
    return (low ** (1 / rho) + ramp * (high ** (1 / rho) - low ** (1 / rho))) ** rho


class ConsistencyTraining:
    """The number of noise levels grows with training."""

    def __init__(self, net, total=800, first=2, last=150):
        self.net, self.target = net, copy.deepcopy(net).requires_grad_(False)
        self.total, self.first, self.last = total, first, last
        self.k = 0

    def levels(self):
        growth = (self.last + 1) ** 2 - self.first**2
        return math.ceil(math.sqrt(self.k / self.total * growth + self.first**2) - 1) + 1

    def loss(self, x):
        sigmas = _karras(max(2, self.levels()), x.device)  # guilty: the levels of the capture
        self.k += 1  # guilty: no replay counts
        n = (torch.rand(len(x), device=x.device) * (len(sigmas) - 1)).long()
        noise = torch.randn_like(x)
        low, high = sigmas[n][:, None], sigmas[n + 1][:, None]
        a = self.net(torch.cat([x + high * noise, high.log()], 1))
        with torch.no_grad():
            b = self.target(torch.cat([x + low * noise, low.log()], 1))
        return (a - b).square().mean()


def levels_of_consistency_grow(device):
    training = ConsistencyTraining(_mlp(device, 13, 12))
    opt = torch.optim.SGD(training.net.parameters(), 1e-4)
    x = torch.randn(8, 12, device=device)

    def step():
        opt.zero_grad()
        loss = training.loss(x)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def denoiser_with_lognormal_levels(device):
    """EDM: preconditioning and the weight of a level by its sigma."""
    net = _mlp(device, 13, 12)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(8, 12, device=device)

    def step(p_mean=-1.2, p_std=1.2, sigma_data=0.5):
        opt.zero_grad(set_to_none=True)
        sigma = (torch.randn(len(x), 1, device=x.device) * p_std + p_mean).exp()
        total = sigma**2 + sigma_data**2
        noisy = x + torch.randn_like(x) * sigma
        inner = net(torch.cat([noisy / total.sqrt(), sigma.log() / 4], 1))
        denoised = sigma_data**2 / total * noisy + sigma * sigma_data / total.sqrt() * inner
        loss = (total / (sigma * sigma_data) ** 2 * (denoised - x) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class AdaptiveAugment:
    """StyleGAN2-ADA: the strength follows the sign of the logits of real images."""

    def __init__(self, target=0.6, speed=0.01):
        self.target, self.speed, self.p = target, speed, 0.0

    def __call__(self, x):
        flip = torch.rand(len(x), 1, device=x.device) < self.p
        return torch.where(flip, x.flip(1), x)

    def update(self, logits):
        sign = torch.sign(logits.detach().sign().mean() - self.target)
        self.p = min(max(self.p + self.speed * sign.item(), 0.0), 1.0)  # guilty: read


class AdaptiveAugmentOnDevice(AdaptiveAugment):
    def __init__(self, device, **settings):
        super().__init__(**settings)
        self.p = torch.zeros((), device=device)

    def update(self, logits):
        sign = torch.sign(logits.detach().sign().mean() - self.target)
        self.p.add_(sign, alpha=self.speed).clamp_(0, 1)


def _discriminating(device, augment):
    critic, generator = _mlp(device, 12, 1), _mlp(device, 4, 12).requires_grad_(False)
    opt = torch.optim.SGD(critic.parameters(), 0.05)
    real = torch.randn(16, 12, device=device)

    def step():
        opt.zero_grad()
        fake = generator(torch.randn(16, 4, device=real.device))
        on_real = critic(augment(real))
        loss = functional.softplus(critic(augment(fake))) + functional.softplus(-on_real)
        loss.mean().backward()
        opt.step()
        augment.update(on_real)
        return loss.detach()

    return step


def augmentation_follows_the_critic(device):
    return _discriminating(device, AdaptiveAugment())


def augmentation_follows_the_critic_on_the_device(device):
    return _discriminating(device, AdaptiveAugmentOnDevice(device))


class PathLength(nn.Module):
    def __init__(self, decay=0.01):
        super().__init__()
        self.decay = decay
        self.pl_mean = torch.zeros([])

    def penalty(self, images, latents):
        noise = torch.randn_like(images) / math.sqrt(images.shape[1])
        (g,) = torch.autograd.grad((images * noise).sum(), latents, create_graph=True)
        lengths = g.square().sum(1).sqrt()
        pl_mean = self.average(lengths.mean())
        self.remember(pl_mean.detach())
        return (lengths - pl_mean).square().mean()

    def average(self, length):
        return self.pl_mean.lerp(length, self.decay)

    def remember(self, mean):
        self.pl_mean.copy_(mean)


class ReboundPathLength(PathLength):
    def average(self, length):
        return self.pl_mean.lerp(length, self.decay)  # guilty: that of before the capture

    def remember(self, mean):
        self.pl_mean = mean  # guilty: rebound in each call


def _smooth_generator(device, regularizer):
    generator = _mlp(device, 4, 12)
    regularizer.pl_mean = regularizer.pl_mean.to(device)
    opt = torch.optim.SGD(generator.parameters(), 0.01)

    def step():
        opt.zero_grad()
        w = torch.randn(8, 4, device=device, requires_grad=True)
        loss = 2.0 * regularizer.penalty(generator(w), w)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def path_length_mean_is_rebound(device):
    return _smooth_generator(device, ReboundPathLength())


def path_length_mean_is_copied(device):
    return _smooth_generator(device, PathLength())


class PopArtHead(nn.Module):
    """The last layer is rescaled so that its outputs stay when the statistics of returns move."""

    def __init__(self, width, beta=3e-2):
        super().__init__()
        self.beta = beta
        self.layer = nn.Linear(width, 1)
        self.register_buffer("mu", torch.zeros(1))
        self.register_buffer("nu", torch.ones(1))

    @property
    def sigma(self):
        return (self.nu - self.mu**2).clamp_min(1e-4).sqrt()

    @torch.no_grad()
    def update(self, returns):
        mu, sigma = self.mu.clone(), self.sigma
        self.mu.lerp_(returns.mean().view(1), self.beta)
        self.nu.lerp_(returns.square().mean().view(1), self.beta)
        self.rescale(mu, sigma)

    def rescale(self, mu, sigma):
        self.layer.bias.mul_(sigma).add_(mu - self.mu).div_(self.sigma)
        self.layer.weight.mul_(sigma / self.sigma)


class PopArtHeadByData(PopArtHead):
    def rescale(self, mu, sigma):
        layer = self.layer
        layer.weight.data = layer.weight.data * sigma / self.sigma  # guilty: other memory
        layer.bias.data = (sigma * layer.bias.data + mu - self.mu) / self.sigma  # guilty: the same


def _critic_with_statistics(device, head_type):
    trunk, head = _mlp(device), head_type(16).to(device)
    opt = torch.optim.SGD([*trunk.parameters(), *head.parameters()], 0.01)
    x, returns = torch.randn(16, 12, device=device), 5 * torch.randn(16, device=device) + 3

    def step():
        opt.zero_grad()
        head.update(returns)
        value = head.layer(trunk(x)).squeeze(1)
        loss = (value - (returns - head.mu) / head.sigma).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def values_rescaled_by_data(device):
    return _critic_with_statistics(device, PopArtHeadByData)


def values_rescaled_in_place(device):
    return _critic_with_statistics(device, PopArtHead)


def _ensemble(device, choose):
    """REDQ: the target is the minimum of a few critics of an ensemble."""
    critics = nn.ModuleList(_mlp(device, 16, 1) for _ in range(6))
    targets = copy.deepcopy(critics).requires_grad_(False)
    opt = torch.optim.SGD(critics.parameters(), 0.01)
    state, action = torch.randn(8, 12, device=device), torch.randn(8, 4, device=device)
    reward = torch.randn(8, 1, device=device)

    def step():
        opt.zero_grad()
        pair = torch.cat([state, action], 1)
        with torch.no_grad():
            target = reward + 0.99 * choose(targets, pair).amin(0)
        loss = sum((critic(pair) - target).square().mean() for critic in critics)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
                slow.mul_(0.995).add_(fast, alpha=0.005)
        return loss.detach()

    return step


def critics_drawn_by_the_host(device):
    def choose(targets, pair):
        chosen = random.sample(range(len(targets)), 2)  # guilty: drawn once
        return torch.stack([targets[i](pair) for i in chosen])

    return _ensemble(device, choose)


def critics_drawn_by_the_device(device):
    def choose(targets, pair):
        values = torch.stack([critic(pair) for critic in targets])
        chosen = torch.rand(len(targets), device=pair.device).topk(2).indices
        return values.index_select(0, chosen)

    return _ensemble(device, choose)


def _group_advantages(rewards, group):
    grouped = rewards.view(-1, group)
    spread = grouped.std(1, keepdim=True)
    return ((grouped - grouped.mean(1, keepdim=True)) / (spread + 1e-4)).flatten()


def completions_cut_at_the_longest(device):
    """GRPO, with the padding of a batch cut off before the forward."""
    policy = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).to(device)
    ids = torch.randint(50, (8, 12), device=device)
    lengths = torch.randint(3, 12, (8,), device=device)
    rewards = torch.randn(8, device=device)

    def loss(ids, lengths, rewards):
        longest = lengths.max()
        ids = ids[:, :longest]  # guilty: an index of the device
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).float()
        logps = policy(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        ratio = torch.exp(logps - logps.detach())
        each = -ratio * _group_advantages(rewards, 4)[:, None]
        return (each * mask[:, 1:]).sum() / mask.sum()

    return loss, (ids, lengths, rewards)


def preferences_against_a_reference(device):
    """DPO: the metrics stay on the device."""
    policy = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).to(device)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    ids = torch.randint(50, (8, 12), device=device)
    lengths = torch.randint(3, 12, (8,), device=device)

    def score(model, ids, mask):
        logps = model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        return (logps * mask).sum(1)

    def loss(ids, lengths):
        mask = torch.arange(11, device=ids.device) < (lengths - 1)[:, None]
        with torch.no_grad():
            base = score(reference, ids, mask)
        margin = score(policy, ids, mask) - base
        chosen, rejected = margin.chunk(2)
        metrics = {
            "accuracy": (chosen > rejected).float().mean(),
            "margin": (chosen - rejected).detach().mean(),
        }
        return -functional.logsigmoid(0.1 * (chosen - rejected)).mean(), metrics

    return loss, (ids, lengths)

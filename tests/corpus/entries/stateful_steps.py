"""Training steps with state that a trainer keeps between them."""

import copy
import math
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional


class WarmEma:
    """timm's ModelEmaV3: the decay warms up."""

    def __init__(self, model, decay=0.9999):
        self.module = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1  # guilty: here too
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for ours, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            ours.lerp_(theirs, 1 - decay)  # guilty: the decay of the capture, for ever


def ema_with_warm_up(device):
    model = nn.Linear(8, 8, device=device)
    ema = WarmEma(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        ema.update(model)
        return loss

    return step


class DeviceEma:
    """The same with its count on the device."""

    def __init__(self, model, decay=0.9999):
        self.module = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.updates = torch.zeros((), device=next(model.parameters()).device)

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        for ours, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            ours.lerp_(theirs, 1 - decay)


def ema_counts_on_the_device(device):
    model = nn.Linear(8, 8, device=device)
    ema = DeviceEma(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        ema.update(model)
        return loss

    return step


def generator_every_fifth_step(device):
    critic, generator = nn.Linear(8, 1, device=device), nn.Linear(4, 8, device=device)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5, capturable=True)
    generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-5, capturable=True)
    real = torch.randn(16, 8, device=device)
    progress = {"iteration": 0}

    def train_step():
        noise = torch.randn(16, 4, device=device)
        critic_optimizer.zero_grad()
        critic_loss = critic(generator(noise).detach()).mean() - critic(real).mean()
        critic_loss.backward()
        critic_optimizer.step()
        if progress["iteration"] % 5 == 0:  # guilty: decided once, at capture
            generator_optimizer.zero_grad()
            generator_loss = -critic(generator(noise)).mean()
            generator_loss.backward()
            generator_optimizer.step()
        progress["iteration"] += 1
        return critic_loss

    return train_step


def critic_five_times_then_generator(device):
    critic, generator = nn.Linear(8, 1, device=device), nn.Linear(4, 8, device=device)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5, capturable=True)
    generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-5, capturable=True)
    real = torch.randn(16, 8, device=device)

    def train_step():
        for iteration in range(5):
            noise = torch.randn(16, 4, device=device)
            critic_optimizer.zero_grad()
            critic_loss = critic(generator(noise).detach()).mean() - critic(real).mean()
            critic_loss.backward()
            critic_optimizer.step()
            if iteration % 5 == 4:
                generator_optimizer.zero_grad()
                (-critic(generator(noise)).mean()).backward()
                generator_optimizer.step()
        return critic_loss

    return train_step


class GradientPenalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, real, fake):
        mix = torch.rand(real.shape[0], 1, device=real.device)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        score = self.body(between)
        (gradient,) = torch.autograd.grad(score.sum(), between, create_graph=True)
        return (gradient.norm(2, dim=1) - 1).square().mean()


def gradient_penalty(device):
    critic = GradientPenalty().to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, capturable=True)
    real, fake = torch.randn(2, 16, 8, device=device)

    def step():
        optimizer.zero_grad()
        penalty = critic(real, fake)
        penalty.backward()
        optimizer.step()
        return penalty.detach()

    return step


def epsilon_greedy(device):
    q_network = nn.Linear(6, 3, device=device)
    epsilon = 0.3

    @torch.no_grad()
    def act(observation):
        greedy = q_network(observation).argmax(-1)
        if random.random() < epsilon:  # guilty: drawn once
            return torch.randint_like(greedy, 3)
        return greedy

    return act, (torch.randn(32, 6, device=device),)


def epsilon_greedy_on_the_device(device):
    q_network = nn.Linear(6, 3, device=device)
    epsilon = 0.3

    @torch.no_grad()
    def act(observation):
        greedy = q_network(observation).argmax(-1)
        explore = torch.rand(greedy.shape, device=device) < epsilon
        return torch.where(explore, torch.randint_like(greedy, 3), greedy)

    return act, (torch.randn(32, 6, device=device),)


def ppo_stops_early(device):
    policy = nn.Linear(6, 3, device=device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, capturable=True)
    observations = torch.randn(32, 6, device=device)
    actions = torch.randint(3, (32, 1), device=device)
    advantages = torch.randn(32, device=device)
    old = torch.full((32,), -math.log(3), device=device)

    def update():
        for _epoch in range(3):
            logprob = policy(observations).log_softmax(-1).gather(1, actions).squeeze(1)
            ratio = (logprob - old).exp()
            surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            kl = (old - logprob).mean()
            if kl > 0.015 * 1.5:  # guilty: the host asks the device
                break
            optimizer.zero_grad()
            (-surrogate.mean()).backward()
            optimizer.step()
        return kl

    return update


def ppo_weighs_by_divergence(device):
    policy = nn.Linear(6, 3, device=device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, capturable=True)
    observations = torch.randn(32, 6, device=device)
    actions = torch.randint(3, (32, 1), device=device)
    advantages = torch.randn(32, device=device)
    old = torch.full((32,), -math.log(3), device=device)

    def update():
        for _epoch in range(3):
            logprob = policy(observations).log_softmax(-1).gather(1, actions).squeeze(1)
            ratio = (logprob - old).exp()
            surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            kl = (old - logprob).mean()
            optimizer.zero_grad()
            (-(surrogate.mean() * (kl <= 0.015 * 1.5))).backward()
            optimizer.step()
        return kl

    return update


class ReturnNormaliser:
    """Running mean and variance of returns, as gym's wrappers have it."""

    def __init__(self, device):
        self.mean = torch.zeros((), device=device)
        self.var = torch.ones((), device=device)
        self.count = 1e-4

    def __call__(self, x):
        batch_mean, batch_var, batch_count = x.mean(), x.var(unbiased=False), x.shape[0]
        delta = batch_mean - self.mean
        total = self.count + batch_count
        self.mean += delta * batch_count / total  # guilty: the total is a number of the host
        m2 = self.var * self.count + batch_var * batch_count
        m2 = m2 + delta.square() * self.count * batch_count / total  # guilty: likewise
        self.var.copy_(m2 / total)  # guilty: likewise
        self.count = total  # guilty: here too
        return (x - self.mean) / (self.var + 1e-8).sqrt()


def running_return_statistics(device):
    return ReturnNormaliser(device), (torch.randn(64, device=device),)


class BatchNormaliser(nn.Module):
    """The same count in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("var", torch.ones(()))
        self.register_buffer("count", torch.full((), 1e-4))

    def forward(self, x):
        batch_count = x.shape[0]
        delta = x.mean() - self.mean
        total = self.count + batch_count
        self.mean += delta * batch_count / total
        m2 = self.var * self.count + x.var(unbiased=False) * batch_count
        m2 = m2 + delta.square() * self.count * batch_count / total
        self.var.copy_(m2 / total)
        self.count.copy_(total)
        return (x - self.mean) / (self.var + 1e-8).sqrt()


def running_statistics_in_buffers(device):
    return BatchNormaliser().to(device), (torch.randn(64, device=device),)


def accumulates_by_a_remainder(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(8, 8, device=device), torch.randint(4, (8,), device=device)
    micro = 0

    def step():
        nonlocal micro
        loss = functional.cross_entropy(model(x), y) / 4
        loss.backward()
        micro += 1
        if micro % 4 == 0:  # guilty: decided at capture
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    return step


def accumulates_in_a_loop(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(4, 8, 8, device=device), torch.randint(4, (4, 8), device=device)

    def step():
        total = torch.zeros((), device=device)
        for micro, (batch, labels) in enumerate(zip(x.unbind(), y.unbind(), strict=True)):
            loss = functional.cross_entropy(model(batch), labels) / 4
            loss.backward()
            total += loss.detach()
            if (micro + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return total

    return step


class Lion:
    """An optimizer by hand, with the learning rate of its own cosine."""

    def __init__(self, params, lr=1e-3, total=1000):
        self.params, self.lr, self.total = list(params), lr, total
        self.momenta = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    @torch.no_grad()
    def step(self):
        lr = self.lr * 0.5 * (1 + math.cos(math.pi * self.t / self.total))
        for p, m in zip(self.params, self.momenta, strict=True):
            update = (0.9 * m + 0.1 * p.grad).sign_()
            p.sub_(update, alpha=lr)  # guilty: the rate of the capture
            m.mul_(0.99).add_(p.grad, alpha=0.01)
        self.t += 1  # guilty: here too


def lion_with_its_cosine(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = Lion(model.parameters())
    x = torch.randn(8, 8, device=device)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class TensorLion:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr
        self.momenta = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.momenta, strict=True):
            p.sub_((0.9 * m + 0.1 * p.grad).sign_() * self.lr)
            m.mul_(0.99).add_(p.grad, alpha=0.01)


def lion_with_a_tensor_rate(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = TensorLion(model.parameters(), torch.full((), 1e-3, device=device))
    x = torch.randn(8, 8, device=device)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def rate_tensor_as_alpha(device):
    model = nn.Linear(8, 4, device=device)
    rate = torch.tensor(1e-2, device=device)
    x = torch.randn(8, 8, device=device)

    def step():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g, alpha=rate)  # guilty: alpha is a number, so the tensor is read
        return loss.detach()

    return step


def smoothed_loss_of_a_deque(device):
    model = nn.Linear(8, 1, device=device)
    window = deque(maxlen=3)
    x = torch.randn(8, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        window.append(loss.detach())  # guilty: here too
        return torch.stack(list(window)).mean()  # guilty: the losses of the warm-up are stacked

    return step


def smoothed_loss_of_a_ring(device):
    model = nn.Linear(8, 1, device=device)
    window = torch.zeros(3, device=device)
    x = torch.randn(8, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        window.copy_(torch.cat([window[1:], loss.detach()[None]]))
        return window.mean()

    return step


def polyak_target_is_assigned(device):
    online, target = (nn.Linear(6, 3, device=device) for _ in range(2))
    x = torch.randn(16, 6, device=device)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(online(x), target(x).detach())  # guilty: here too
        loss.backward()
        optimizer.step()
        for name, p in online.named_parameters():
            mixed = 0.995 * getattr(target, name).detach() + 0.005 * p.detach()
            setattr(target, name, nn.Parameter(mixed))  # guilty: a replay reads the old parameter
        return loss.detach()

    return step


def polyak_target_by_foreach(device):
    online, target = (nn.Linear(6, 3, device=device) for _ in range(2))
    x = torch.randn(16, 6, device=device)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    ours, theirs = list(target.parameters()), list(online.parameters())

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(online(x), target(x).detach())
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_mul_(ours, 0.995)
            torch._foreach_add_(ours, theirs, alpha=0.005)
        return loss.detach()

    return step


def target_loaded_in_the_step(device):
    online = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).to(device)
    target = copy.deepcopy(online).eval()
    x = torch.randn(16, 6, device=device)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(online(x), target(x).detach() + 1)
        loss.backward()
        optimizer.step()
        target.load_state_dict(online.state_dict())
        return loss.detach()

    return step


def inner_loop_on_a_copy(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x, y = torch.randn(10, 4, device=device), torch.randn(10, 1, device=device)

    def reptile():
        fast = copy.deepcopy(net)
        inner = torch.optim.SGD(fast.parameters(), lr=0.05)
        for _ in range(3):
            inner.zero_grad()
            functional.mse_loss(fast(x), y).backward()
            inner.step()
        with torch.no_grad():
            for slow, new in zip(net.parameters(), fast.parameters(), strict=True):
                slow.lerp_(new, 0.1)
        return functional.mse_loss(net(x), y).detach()

    return reptile


def scheduler_multiplies_the_rate(device):
    model = nn.Linear(8, 4, device=device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()  # by an op on the tensor
        return loss

    return step


def scheduler_calls_a_function_for_the_rate(device):
    model = nn.Linear(8, 4, device=device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()  # guilty: the function is called with a count of the host
        return loss

    return step


def scheduler_calls_a_function_for_the_factor(device):
    model = nn.Linear(8, 4, device=device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    factor = [0.5, 0.9, 0.99]
    scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda n: factor[n % 3])
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()  # guilty: the function is called with a count of the host
        return loss

    return step


def mask_of_a_seed_of_its_own(device):
    generator = torch.Generator(device=device)
    x = torch.randn(8, 8, device=device)

    def masked():
        generator.manual_seed(7)  # guilty: no replay seeds it
        return x * torch.bernoulli(torch.full_like(x, 0.5), generator=generator)

    return masked


def noise_is_seeded_for_the_next_call(device):
    generator = torch.Generator(device=device)
    generator.manual_seed(0)
    x = torch.randn(8, 8, device=device)

    def noisy():
        y = x + torch.randn(8, 8, device=device, generator=generator)
        generator.manual_seed(0)  # guilty: no replay seeds it
        return y

    return noisy


def generator_is_seeded_before_the_capture(device):
    generator, shuffled = torch.Generator(device=device), torch.Generator()
    generator.manual_seed(0)
    x = torch.randn(8, 8, device=device)

    def noisy():
        shuffled.manual_seed(0)  # of the host, and the same order in each call
        order = torch.randperm(4, generator=shuffled).tolist()
        y = x + torch.randn(8, 8, device=device, generator=generator)
        return sum(y[row] for row in order)

    return noisy


def accepted_lengths_are_counted_in_an_argument(device):
    """The histogram is read after some replays, and nothing in the step depends on it."""
    torch.manual_seed(0)
    head = nn.Linear(8, 5, device=device).requires_grad_(False)

    def accept(features, histogram):
        lengths = head(features).argmax(-1)
        histogram.scatter_add_(0, lengths, torch.ones_like(lengths))
        return lengths

    histogram = torch.zeros(5, dtype=torch.long, device=device)
    return accept, (torch.randn(16, 8, device=device), histogram)


def scheduler_fills_the_rate(device):
    model = nn.Linear(8, 4, device=device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()  # guilty: its number of the capture is filled in again and again
        return loss

    return step


def swa_model(device):
    model = nn.Linear(8, 4, device=device)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)  # guilty: asks n_averaged, which is on the device
        return loss

    return step


class LossScaler:
    """Dynamic loss scale of the host, as apex had it."""

    def __init__(self):
        self.scale, self.good = 2.0**10, 0

    def update(self, overflow):
        if overflow:
            self.scale, self.good = self.scale / 2, 0
        else:
            self.good += 1
            if self.good == 2:
                self.scale, self.good = self.scale * 2, 0


def own_loss_scaler(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = LossScaler()
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        (loss * scaler.scale).backward()
        overflow = any(not p.grad.isfinite().all() for p in model.parameters())  # guilty: a bool
        scaler.update(overflow)
        if not overflow:
            torch._foreach_div_([p.grad for p in model.parameters()], scaler.scale)
            optimizer.step()
        return loss

    return step


def torch_grad_scaler(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # guilty: reads found_inf on the host
        scaler.update()
        return loss

    return step


def grad_scaler_with_a_fused_optimizer(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(8, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def curriculum_of_noise(device):
    model = nn.Linear(8, 8, device=device)
    state = torch.zeros((), dtype=torch.int64, device=device)
    table = torch.linspace(1.0, 0.1, 10, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 8, device=device)

    def step():
        sigma = table.gather(0, state.clamp(max=9)[None])
        state.add_(1)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x + sigma * torch.randn_like(x)), x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

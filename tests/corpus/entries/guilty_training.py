"""Guilty training steps."""

import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# EMA whose decay warms up with a Python count: the lerp weight is frozen at capture.
class EMA:
    def __init__(self, model, decay=0.999):
        self.updates = 0
        self.decay = decay
        self.model = model
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self):
        self.updates += 1  # guilty: here too
        d = self.decay * (1 - math.exp(-self.updates / 200))  # guilty: here too
        for s, p in zip(self.shadow, self.model.parameters(), strict=False):
            s.lerp_(p, 1 - d)  # guilty: see above


def ema_warmup(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    ema = EMA(net)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        ema.update()
        return loss

    return step


# GAN: the generator trains on every second call only; the branch is frozen.
class Trainer:
    def __init__(self, device):
        self.g, self.d = mlp(device), mlp(device, out=1)
        self.og = torch.optim.SGD(self.g.parameters(), lr=0.01)
        self.od = torch.optim.SGD(self.d.parameters(), lr=0.01)
        self.z = torch.randn(8, 16, device=device)
        self.real = torch.randn(8, 16, device=device)
        self.it = 0

    def train_step(self):
        self.od.zero_grad()
        fake = self.g(self.z)
        ld = (
            functional.softplus(self.d(fake.detach())).mean()
            + functional.softplus(-self.d(self.real)).mean()
        )
        ld.backward()
        self.od.step()
        if self.it % 2 == 0:  # guilty: see above
            self.og.zero_grad()  # guilty: here too
            lg = functional.softplus(-self.d(fake)).mean()  # guilty: here too
            lg.backward()
            self.og.step()
        self.it += 1  # guilty: here too
        return ld


def gan_every_second(device):
    t = Trainer(device)
    return t.train_step


# Gradient accumulation with a micro-step counter in a closure.
def accumulate(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(8, 16, device=device)
    micro = 0

    def step():
        nonlocal micro
        loss = net(x).square().mean() / 4
        loss.backward()
        micro += 1  # guilty: here too
        if micro % 4 == 0:  # guilty: see above
            opt.step()  # guilty: here too
            opt.zero_grad(set_to_none=False)  # guilty: here too
        return loss

    return step


# A scheduler inside the step: SGD's float lr is baked into the kernels.
def scheduler_inside(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()  # guilty: here too
        sched.step()  # guilty: see above
        return loss

    return step


# clip_grad_norm_ that raises: reads the norm on the host.
def clip_raises(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(
            net.parameters(), 1.0, error_if_nonfinite=True
        )  # guilty: see above
        opt.step()
        return loss

    return step


# GradScaler.step reads found_inf with .item().
def scaler(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gs = torch.amp.GradScaler("cuda")
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        gs.scale(loss).backward()
        gs.step(opt)  # guilty: see above
        gs.update()
        return loss

    return step


# Curriculum: the sequence grows each call.
class Curriculum:
    def __init__(self, device):
        self.n = 4
        self.net = mlp(device)
        self.x = torch.randn(2, 64, 16, device=device)

    def __call__(self):
        seq = self.x[:, : min(self.n, 64)]  # guilty: see above
        self.n += 1  # guilty: here too
        loss = self.net(seq).square().mean()
        loss.backward()
        return loss


def curriculum(device):
    c = Curriculum(device)
    return c.__call__


# Dropout rate that decays on each forward.
class ScheduledDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = 0.5

    def forward(self, x):
        y = functional.dropout(x, self.p, self.training)  # guilty: see above
        self.p = max(0.1, self.p * 0.97)  # guilty: here too
        return y


def dropout_schedule(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), ScheduledDropout(), nn.Linear(32, 4)).to(device)
    return net, (torch.randn(8, 16, device=device),)


# LayerDrop with Python's random.
class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < 0.3:  # guilty: see above
                continue
            x = x + torch.tanh(layer(x))  # guilty: here too
        return x


def layerdrop(device):
    torch.manual_seed(0)
    return LayerDrop().to(device), (torch.randn(4, 16, device=device),)


# A hand-written optimizer that replaces p.data: the new tensor is in the pool, the next replay
# reads the old one.
def data_replaced(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        for p in net.parameters():
            p.grad = None
        loss = net(x).square().mean()
        loss.backward()
        for p in net.parameters():
            p.data = p.data - 0.05 * p.grad  # guilty: see above
        return loss

    return step


# Class weights from a Python list, made on the device in each call: an unpinned copy.
def class_weights(device):
    net = mlp(device, out=3)
    x = torch.randn(8, 16, device=device)
    y = torch.randint(3, (8,), device=device)

    def step():
        w = torch.tensor([0.2, 0.3, 0.5], device=device)  # guilty: see above
        loss = functional.cross_entropy(net(x), y, weight=w)
        loss.backward()
        return loss

    return step


# Checkpoint that saves the RNG state, and sets it in a backward that is a graph of its own.
class Ckpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.GELU())

    def forward(self, x):
        return checkpoint(
            self.block, x, use_reentrant=False
        )  # guilty if recomputes-other-numbers: see above


def checkpoint_rng(device):
    torch.manual_seed(0)
    return Ckpt().to(device), (torch.randn(4, 16, device=device),)


# MLM: loss on masked positions only, by a boolean index.
def mlm(device):
    net = mlp(device, out=10)
    x = torch.randn(32, 16, device=device)
    y = torch.randint(10, (32,), device=device)
    mask = torch.rand(32, device=device) < 0.4

    def step():
        logits = net(x)
        loss = functional.cross_entropy(logits[mask], y[mask])  # guilty: see above
        loss.backward()
        return loss

    return step


# PPO: early stop on the KL between epochs.
def ppo(device):
    net = mlp(device, out=4)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
    obs = torch.randn(16, 16, device=device)
    act = torch.randint(4, (16, 1), device=device)
    old = torch.randn(16, 1, device=device)
    adv = torch.randn(16, 1, device=device)

    def update():
        for _ in range(3):
            logp = functional.log_softmax(net(obs), -1).gather(1, act)
            ratio = (logp - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            kl = (old - logp).mean()
            if kl > 1.5 * 0.02:  # guilty: see above
                break
        return loss

    return update


# Metric kept in a list, copied to pageable memory.
def metrics(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    log = []

    def step():
        loss = net(x).square().mean()
        loss.backward()
        log.append(loss.detach().to("cpu"))  # guilty: see above
        return loss

    return step


# The scale comes from last step's loss, which an async copy left in pinned memory: no sync, but
# a frozen number.
class PinnedFeedback:
    def __init__(self, device):
        self.net = mlp(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.host = torch.zeros((), pin_memory=True)
        self.x = torch.randn(8, 16, device=device)

    def step(self):
        self.opt.zero_grad()
        loss = self.net(self.x).square().mean()
        scale = 1.0 / (1.0 + float(self.host))  # guilty: see above
        (loss * scale).backward()
        self.opt.step()
        self.host.copy_(loss.detach(), non_blocking=True)
        return loss


def pinned_feedback(device):
    return PinnedFeedback(device).step


# Batches are picked by a Python index: the graph reads the captured one's address.
def rotating_batches(device):
    net = mlp(device)
    batches = [torch.randn(8, 16, device=device) for _ in range(5)]
    state = {"i": 0}

    def step():
        x = batches[state["i"] % len(batches)]  # guilty: see above
        state["i"] += 1  # guilty: here too
        loss = net(x).square().mean()  # guilty: here too
        loss.backward()
        return loss

    return step


# Augmentation noise from numpy.
def numpy_noise(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        noise = torch.from_numpy(np.random.randn(8, 16).astype(np.float32)).to(
            device
        )  # guilty: see above
        loss = net(x + 0.1 * noise).square().mean()
        loss.backward()
        return loss

    return step


# Mixup coefficient from numpy's beta: only a number.
def mixup(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        lam = float(np.random.beta(0.4, 0.4))  # guilty: see above
        loss = net(lam * x + (1 - lam) * x.flip(0)).square().mean()  # guilty: here too
        loss.backward()
        return loss

    return step


# CTC with lengths on the device: copied to the host inside.
def ctc(device):
    torch.manual_seed(0)
    net = nn.Linear(16, 7).to(device)
    x = torch.randn(20, 3, 16, device=device)
    tgt = torch.randint(1, 7, (3, 5), device=device)
    il = torch.full((3,), 20, dtype=torch.long, device=device)
    tl = torch.full((3,), 5, dtype=torch.long, device=device)

    def step():
        loss = functional.ctc_loss(net(x).log_softmax(-1), tgt, il, tl)  # guilty: see above
        loss.backward()
        return loss

    return step


# A hook that scales gradients by a growing count.
def hook_counter(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    count = [0]

    def hook(grad):
        count[0] += 1  # guilty: here too
        return grad / count[0]  # guilty: see above

    net[2].weight.register_hook(hook)

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step

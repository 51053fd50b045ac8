"""Host reads and host state that a line does not show at once."""

import contextlib
import itertools
import json
import math
import tempfile
import time
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional


# cumulative batch norm reads the number of batches
def bn_cumulative(device):
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None)).to(device)

    def forward(x):
        return net(x)  # guilty: its counter is read

    return torch.no_grad()(forward), (torch.randn(4, 8, device=device),)


# adaptive softmax selects by nonzero
def adaptive_softmax(device):
    head = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]).to(device)

    def loss(x, y):
        return head(x, y).loss  # guilty: the shape depends on values

    return torch.no_grad()(loss), (
        torch.randn(6, 8, device=device),
        torch.randint(20, (6,), device=device),
    )


# Python's max over 0-dim tensors
def python_max(device):
    heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3)).to(device)

    def forward(x):
        losses = [h(x).square().mean() for h in heads]
        return max(losses)  # guilty: the truth of a tensor

    return torch.no_grad()(forward), (torch.randn(4, 8, device=device),)


# `in` of a tensor
def contains(device):
    def forward(ids, x):
        if 50256 in ids:  # guilty: the truth of a tensor
            x = x + 1
        return x

    return forward, (torch.randint(9, (4,), device=device), torch.randn(4, device=device))


# a tensor as index of a Python list
def list_index(device):
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)

    def forward(x):
        k = x.sum(0).argmax() % 3
        return list(experts)[k](x)  # guilty: a tensor as a Python number

    return torch.no_grad()(forward), (torch.randn(4, 8, device=device),)


# math.sqrt of a tensor
def math_sqrt(device):
    def forward(x):
        return x / math.sqrt(x.square().sum() + 1e-6)  # guilty: a tensor as a Python number

    return forward, (torch.randn(4, 8, device=device),)


# numpy function of a tensor
def numpy_function(device):
    def forward(x):
        edges = np.percentile(x.detach().cpu().numpy(), 95)  # guilty: copied to the host
        return x.clamp(max=float(edges))

    return forward, (torch.randn(4, 8, device=device),)


# range over a tensor
def loop_by_a_tensor(device):
    def forward(x, n):
        y = x
        for _ in range(n):  # guilty: a tensor as a Python number
            y = y @ y
        return y

    return forward, (torch.randn(3, 3, device=device), torch.tensor(2, device=device))


# upper triangle by a boolean mask
def triu_mask(device):
    def pairs(x):
        d = torch.cdist(x, x)
        return d[
            torch.ones_like(d, dtype=torch.bool).triu(1)
        ].mean()  # guilty: the shape depends on values

    return torch.no_grad()(pairs), (torch.randn(5, 3, device=device),)


# unique with counts
def unique_counts(device):
    def entropy(ids):
        _, n = ids.unique(return_counts=True)  # guilty: the shape depends on values
        p = n / n.sum()
        return -(p * p.log()).sum()

    return entropy, (torch.randint(5, (20,), device=device),)


# one_hot without a class count
def one_hot(device):
    def forward(y):
        return functional.one_hot(y).float()  # guilty: the largest class is read

    return forward, (torch.randint(5, (8,), device=device),)


# sequence mask with maxlen from the lengths
def sequence_mask(device):
    def mask(x, lengths):
        m = (
            torch.arange(lengths.max(), device=x.device)[None] < lengths[:, None]
        )  # guilty: a tensor as bound
        return x[:, : m.shape[1]] * m

    return mask, (torch.randn(2, 6, device=device), torch.tensor([4, 6], device=device))


# a triplet miner: hardest positive over a python loop with item
def torch_equal_cache(device):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.value = None, None
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            if self.key is None or not torch.equal(self.key, x):  # guilty: the host compares
                self.key, self.value = x.clone(), self.lin(x)
            return self.value + 1

    return torch.no_grad()(Cached().to(device)), (torch.randn(2, 8, device=device),)


# random choice of scale by numpy global
def multi_scale(device):
    conv = nn.Conv2d(3, 4, 3, padding=1).to(device)

    def forward(x):
        size = int(np.random.choice([4, 6, 8]))  # guilty: drawn on the host
        return conv(functional.interpolate(x, size=(size, size))).mean(
            (2, 3)
        )  # guilty: drawn on the host

    return torch.no_grad()(forward), (torch.rand(2, 3, 8, 8, device=device),)


# ping-pong buffers
def ping_pong(device):
    class Solver:
        def __init__(self):
            self.bufs = [torch.zeros(8, device=device), torch.zeros(8, device=device)]
            self.cur = 0

        def __call__(self, f):
            src, dst = (
                self.bufs[self.cur],
                self.bufs[1 - self.cur],
            )  # guilty: chosen by a number that changes
            torch.add(src * 0.5, f, out=dst)  # guilty: another tensor in each call
            self.cur = 1 - self.cur  # guilty: changes on the host
            return dst.clone()  # guilty: another tensor in each call

    return Solver(), (torch.randn(8, device=device),)


# swap of references
def swap(device):
    class Wave:
        def __init__(self):
            self.prev, self.now = torch.zeros(16, device=device), torch.randn(16, device=device)
            self.next = torch.zeros(16, device=device)

        def step(self):
            lap = (
                self.now.roll(1) + self.now.roll(-1) - 2 * self.now
            )  # guilty: another tensor in each call
            torch.add(
                2 * self.now - self.prev, lap, alpha=0.1, out=self.next
            )  # guilty: another tensor in each call
            self.prev, self.now, self.next = (
                self.now,
                self.next,
                self.prev,
            )  # guilty: other tensors in each call
            return self.now.clone()

    wave = Wave()
    return lambda: wave.step()


# pre-loaded device batches by itertools.cycle
def cycle_batches(device):
    batches = itertools.cycle([torch.randn(4, 8, device=device) for _ in range(3)])
    lin = nn.Linear(8, 8).to(device)

    def step():
        x = next(batches)  # guilty: another tensor in each call
        return lin(x)  # guilty: another tensor in each call

    return torch.no_grad()(step)


# data loader inside
def loader_inside(device):
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(4, (32,)))

    def forever(loader):
        while True:
            yield from loader

    batches = forever(torch.utils.data.DataLoader(data, 4, shuffle=True))
    model = nn.Linear(8, 4).to(device)
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        x, y = next(batches)
        x, y = x.to(device), y.to(device)  # guilty: copied from the host
        loss = functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


# warm-up schedule from a generator function
def schedule_generator(device):
    def warmup():
        n = 0
        while True:
            n += 1
            yield min(1.0, n / 2000)

    schedule = warmup()
    lin = nn.Linear(8, 8).to(device)

    def step(x):
        return lin(x) * next(schedule)  # guilty: a number that changes

    return torch.no_grad()(step), (torch.randn(2, 8, device=device),)


# CPU step buffer forgotten on the host
def cpu_step_tensor(device):
    class Cosine:
        def __init__(self):
            self.step = torch.zeros((), dtype=torch.long)
            self.lin = nn.Linear(8, 8).to(device)

        def __call__(self, x):
            self.step += 1  # guilty: counted on the host
            tau = 0.99 + 0.01 * math.cos(math.pi * self.step.item() / 10000)
            return self.lin(x) * tau  # guilty: a number that changes

    return torch.no_grad()(Cosine().__call__), (torch.randn(2, 8, device=device),)


# property that counts
def property_that_counts(device):
    class Clock:
        def __init__(self):
            self._t = 0

        @property
        def t(self):
            self._t += 1  # guilty: counted on the host
            return self._t

    clock = Clock()

    def embed(x):
        freq = torch.arange(4, device=x.device)
        return x + torch.cat(
            [(clock.t * freq).sin(), (freq * 2).cos()]
        )  # guilty: a number that changes

    return embed, (torch.randn(2, 8, device=device),)


# gradient reversal with Ganin's schedule: lambda only reaches backward
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None  # guilty: a number that changes


def dann_lambda(device):
    class Dann(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.d = nn.Linear(8, 8), nn.Linear(8, 2)
            self.it = 0

        def forward(self, x):
            p = self.it / 10000
            self.it += 1  # guilty: counted on the host
            lam = 2 / (1 + math.exp(-10 * p)) - 1
            return self.d(Reverse.apply(self.f(x), lam))  # guilty: a number that changes

    return Dann().to(device), (torch.randn(4, 8, device=device),)


# scheduler.step in the step, capturable AdamW with a float rate
def scheduler_inside(device):
    model = nn.Linear(8, 4).to(device)
    opt = torch.optim.AdamW(
        model.parameters(), 1e-3, capturable=True
    )  # guilty: the rate is a number
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=100000)
    x = torch.randn(4, 8, device=device)

    def step():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()  # guilty: the rate is a number
        scheduler.step()  # guilty: the scheduler runs on the host
        return loss.detach()

    return step


# hot-reloaded configuration file
def config_reload(device):
    path = Path(tempfile.mkdtemp()) / "gen.json"
    path.write_text(json.dumps({"temperature": 0.8}))

    class Engine:
        def __init__(self):
            self.mtime, self.config = 0, {}

        def refresh(self):
            mtime = path.stat().st_mtime  # guilty: read from a file
            if mtime != self.mtime:
                self.config = json.loads(path.read_text())  # guilty: read from a file
                self.mtime = mtime

        def __call__(self, logits):
            self.refresh()  # guilty: read from a file
            return (logits / self.config["temperature"]).softmax(-1)  # guilty: read from a file

    return Engine(), (torch.randn(2, 9, device=device),)


# curriculum: sequence length grows with a counter
def seq_len_curriculum(device):
    emb = nn.Embedding(20, 8).to(device)
    state = {"n": 0}

    def step(ids):
        state["n"] += 1  # guilty: counted on the host
        length = min(ids.shape[1], 4 + state["n"] // 1000)
        return emb(ids[:, :length]).mean(1)  # guilty: a number that changes

    return torch.no_grad()(step), (torch.randint(20, (2, 16), device=device),)


# dynamic loss scale kept on the host (Megatron / apex)
def dynamic_loss_scale(device):
    model = nn.Linear(8, 4).to(device)
    x = torch.randn(4, 8, device=device)

    class Scaler:
        scale, good = 2.0**16, 0

        def update(self, params):
            overflow = any(
                not torch.isfinite(p.grad).all() for p in params
            )  # guilty: the truth of a tensor
            self.good = 0 if overflow else self.good + 1
            if self.good % 2000 == 0:
                self.scale *= 2

    scaler = Scaler()

    def step():
        for p in model.parameters():
            p.grad = None
        (model(x).square().mean() * scaler.scale).backward()
        scaler.update(list(model.parameters()))

    return step


# partial with a mutable list as argument
def partial_list(device):
    def scaled(history, x):
        history.append(x.shape[0])  # guilty: a list that grows
        return x * (1 / len(history))  # guilty: a number that changes

    return partial(scaled, []), (torch.randn(2, 8, device=device),)


# new parameter tensors on each call: momentum rebound instead of in place
def momentum_rebound(device):
    w = torch.randn(8, 8, device=device)

    class Sgd:
        buf = torch.zeros(8, 8, device=device)

        def update(self, g):
            self.buf = 0.9 * self.buf + g  # guilty: new tensors in each call
            w.sub_(0.1 * self.buf)  # guilty: of the new tensor
            return w.clone()

    sgd = Sgd()
    return sgd.update, (torch.randn(8, 8, device=device),)


# cached_property that is invalidated
def cached_property_is_dropped(device):
    class Bank:
        def __init__(self):
            self.keys = torch.randn(4, 8, device=device)
            self.uses = 0

        @cached_property
        def normed(self):
            return functional.normalize(self.keys, dim=1)

        def __call__(self, x):
            self.uses += 1  # guilty: counted on the host
            if self.uses % 50 == 0:  # guilty: decided by a counter
                self.keys.lerp_(x, 0.1)
                del self.normed
            return x @ self.normed.t()

    return torch.no_grad()(Bank().__call__), (torch.randn(4, 8, device=device),)


# contextmanager that anneals
def context_anneal(device):
    class Noise:
        level = 1.0

        @contextlib.contextmanager
        def active(self):
            yield self.level
            self.level *= 0.9999  # guilty: changes with the time

    noise = Noise()

    def forward(x):
        with noise.active() as level:
            return x + torch.randn_like(x) * level  # guilty: a number that changes

    return forward, (torch.randn(4, device=device),)


# host copy awaited through non_blocking and an event
def async_readback(device):
    host = torch.empty(4).pin_memory()
    done = torch.cuda.Event()

    def step(x):
        host.copy_(x.mean(1), non_blocking=True)
        done.record()
        while not done.query():  # guilty: an event is queried
            time.sleep(0)
        return x * float(host[0])

    return step, (torch.randn(4, 8, device=device),)


# pageable output copy for logging
# model still on the CPU moved in forward (offloading)
def offload(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(x):
        for b in blocks:
            b.to(x.device)  # guilty: copied from the host
            x = b(x).relu()
            b.to("cpu")  # guilty: copied to the host
        return x

    return torch.no_grad()(forward), (torch.randn(2, 8, device=device),)


# mixed precision: torch.tensor(scale, device) each call
def tensor_scale(device):
    lin = nn.Linear(8, 8).to(device)

    def forward(x):
        scale = torch.tensor(1 / math.sqrt(8), device=x.device)  # guilty: copied from the host
        return lin(x) * scale

    return torch.no_grad()(forward), (torch.randn(2, 8, device=device),)


# reentrant checkpoint
def checkpoint_reentrant(device):
    from torch.utils.checkpoint import checkpoint_sequential

    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)]).to(device)

    def forward(x):
        return checkpoint_sequential(
            model, 2, x, use_reentrant=True
        )  # guilty: reentrant checkpointing

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


# stream race: side result used before the join
def race(device):
    side = torch.cuda.Stream()
    a, b = nn.Linear(8, 8).to(device), nn.Linear(8, 8).to(device)

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            left = a(x)  # guilty: not joined yet
        y = left + b(x)  # guilty: not joined yet
        torch.cuda.current_stream().wait_stream(side)
        return y

    return torch.no_grad()(forward), (torch.randn(4, 8, device=device),)


# side stream never forked
def side_unforked(device):
    side = torch.cuda.Stream()
    a = nn.Linear(8, 8).to(device)

    def forward(x):
        y = x * 2
        with torch.cuda.stream(side):
            z = a(y)  # guilty: not part of the capture
        torch.cuda.current_stream().wait_stream(side)  # guilty: work outside the capture
        return z

    return torch.no_grad()(forward), (torch.randn(4, 8, device=device),)


# returned Python number that changes
def jagged_lengths(device):
    lin = nn.Linear(4, 4).to(device)

    def forward(values, lengths):
        nt = torch.nested.nested_tensor(
            list(values.split(lengths.tolist())), layout=torch.jagged
        )  # guilty: the lengths are read
        return lin(nt).values()

    return torch.no_grad()(forward), (
        torch.randn(5, 4, device=device),
        torch.tensor([2, 3], device=device),
    )


# torch.func with a host RNG in a vmapped function
def combinations(device):
    def forward(x):
        pairs = torch.combinations(
            torch.arange(5, device=x.device)
        )  # guilty: the shape depends on values
        return (x[pairs[:, 0]] - x[pairs[:, 1]]).norm(dim=1)

    return torch.no_grad()(forward), (torch.randn(5, 3, device=device),)


# histogram matching
def bincount(device):
    def forward(x):
        counts = torch.bincount(
            (x * 10).long().flatten().clamp(0, 9), minlength=10
        )  # guilty: the largest value is read
        return counts.cumsum(0)

    return forward, (torch.rand(4, 8, device=device),)


# eigen-decomposition in a whitening layer
def whitening(device):
    def forward(x):
        c = x - x.mean(0)
        values, vectors = torch.linalg.eigh(c.t() @ c / len(x))  # guilty: its error code is read
        return c @ vectors * values.clamp(min=1e-5).rsqrt()

    return torch.no_grad()(forward), (torch.randn(8, 4, device=device),)


# CTC loss with lengths on the device
def ctc(device):
    head = nn.Linear(8, 6).to(device)

    def loss(x, target, xl, tl):
        return functional.ctc_loss(
            head(x).log_softmax(-1), target, xl, tl
        )  # guilty: the lengths are copied

    return torch.no_grad()(loss), (
        torch.randn(10, 2, 8, device=device),
        torch.randint(1, 6, (2, 4), device=device),
        torch.tensor([10, 8], device=device),
        torch.tensor([4, 3], device=device),
    )


# k-means until convergence
def kmeans(device):
    def fit(x):
        c = x[:3].clone()
        for _ in range(5):
            label = torch.cdist(x, c).argmin(1)
            new = torch.stack(
                [x[label == i].mean(0) for i in range(3)]
            )  # guilty: the shape depends on values
            if torch.allclose(new, c):  # guilty: the host compares
                break
            c = new
        return c

    return fit, (torch.randn(20, 2, device=device),)

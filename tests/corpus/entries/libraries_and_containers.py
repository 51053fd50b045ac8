"""Reads inside libraries, and host state in unusual places."""

import array
import bisect
import collections
import contextlib
import functools
import math
import operator
import types
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def early_exit_cond(device):
    small, large = nn.Linear(16, 16).to(device), nn.Linear(16, 16).to(device)

    @torch.no_grad()
    def forward(x):
        confident = x.abs().mean() > 0.5
        return torch.cond(
            confident, lambda x: small(x).sin(), lambda x: large(x).cos(), (x,)
        )  # guilty: reads the condition

    return forward, (torch.randn(4, 16, device=device),)


def sparse_embedding_adam(device):
    table = nn.Embedding(100, 8, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    ids = torch.randint(100, (16,), device=device)

    def step():
        optimizer.zero_grad()
        loss = table(ids).square().sum()
        loss.backward()
        optimizer.step()  # guilty: counts the rows
        return loss

    return step


def jagged_unbind(device):
    offsets = torch.tensor([0, 2, 5, 9], device=device)
    lin = nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def per_sequence(values):
        nt = torch.nested.nested_tensor_from_jagged(lin(values), offsets)
        return torch.stack([part.mean(0) for part in nt.unbind()])  # guilty: reads the lengths

    return per_sequence, (torch.randn(9, 8, device=device),)


def adaptive_softmax(device):
    encoder = nn.Linear(16, 32).to(device)
    loss = nn.AdaptiveLogSoftmaxWithLoss(32, 100, cutoffs=[10, 50]).to(device)

    def language_model(x, y):
        return loss(encoder(x), y).loss  # guilty: as many as fall in a cluster

    return language_model, (
        torch.randn(8, 16, device=device),
        torch.randint(100, (8,), device=device),
    )


def gaussian_policy_validated(device):
    actor = nn.Linear(8, 6).to(device)

    def log_prob(obs, action):
        mean, log_scale = actor(obs).chunk(2, -1)
        covariance = torch.diag_embed(log_scale.exp())
        normal = torch.distributions.MultivariateNormal(
            mean, covariance
        )  # guilty: checks its arguments
        return normal.log_prob(action).mean()  # guilty: checks its arguments

    return log_prob, (torch.randn(8, 8, device=device), torch.randn(8, 3, device=device))


def plateau_in_step(device):
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        plateau.step(loss)  # guilty: compares the loss
        return loss

    return step


class Trainer:
    def __init__(self):
        self.global_step = 0


class LitModule(nn.Module):
    """As in Lightning: the module reaches its trainer through a weak proxy."""

    def __init__(self, trainer):
        super().__init__()
        self.lin = nn.Linear(16, 16)
        object.__setattr__(self, "trainer", weakref.proxy(trainer))

    @property
    def kl_weight(self):
        return min(1.0, self.trainer.global_step / 1000)  # guilty: follows the trainer

    def training_step(self, x):
        z = self.lin(x)
        return (
            functional.mse_loss(z, x) + self.kl_weight * z.square().mean()
        )  # guilty: follows the trainer


def lightning_kl_annealing(device):
    trainer = Trainer()
    module = LitModule(trainer).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x = torch.randn(8, 16, device=device)

    def step():
        loss = module.training_step(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trainer.global_step += 1  # guilty: follows the trainer
        return loss

    return step


class NumUpdates(nn.Module):
    """fairseq's quantizer noise: the count is an array."""

    def __init__(self):
        super().__init__()
        self.count = np.zeros(1, dtype=np.int64)
        self.history = array.array("d", [1.0])
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        self.count += 1  # guilty: follows a count
        tau = max(0.1, 2.0 * 0.999995 ** float(self.count[0]))  # guilty: follows a count
        return functional.gumbel_softmax(self.lin(x), tau=tau, dim=-1)  # guilty: follows a count


def gumbel_numpy_counter(device):
    return NumUpdates().to(device), (torch.randn(4, 8, device=device),)


class MultiStep:
    def __init__(self, milestones, gamma):
        self.state = types.SimpleNamespace(step=0, milestones=milestones, gamma=gamma)

    def factor(self):
        s = self.state
        s.step += 1  # guilty: follows a count
        return s.gamma ** bisect.bisect_right(s.milestones, s.step)  # guilty: follows a count


def multistep_namespace(device):
    schedule = MultiStep([1000, 2000], 0.1)
    weight = torch.randn(16, 16, device=device)

    @torch.no_grad()
    def relax(gradient):
        weight.add_(gradient, alpha=-0.1 * schedule.factor())  # guilty: follows a count
        return weight.norm()

    return relax, (torch.randn(16, 16, device=device),)


class Tracked:
    """A descriptor that keeps its value in the instance."""

    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__[self.slot]

    def __set__(self, instance, value):
        instance.__dict__[self.slot] = value  # guilty: raised in each call


class Annealed(nn.Module):
    beta = Tracked()

    def __init__(self):
        super().__init__()
        self.beta = 0.0
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        self.beta = min(1.0, self.beta + 1e-4)  # guilty: raised in each call
        return self.body(x) * self.beta  # guilty: raised in each call


def descriptor_state(device):
    return Annealed().to(device), (torch.randn(4, 8, device=device),)


class NoisyTopK(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.jitter = functools.partial(self.add_noise, scale=1.0)

    @staticmethod
    def add_noise(x, *, scale):
        return x + scale * torch.ones_like(x)  # guilty: decays in each call

    def forward(self, x):
        logits = self.jitter(self.gate(x))  # guilty: decays in each call
        scale = self.jitter.keywords["scale"]
        self.jitter = functools.partial(
            self.add_noise, scale=scale * 0.95
        )  # guilty: decays in each call
        return logits.softmax(-1) + scale  # guilty: decays in each call


def partial_keyword_decay(device):
    return NoisyTopK().to(device), (torch.randn(4, 8, device=device),)


def attrgetter_step(device):
    run = types.SimpleNamespace(progress=types.SimpleNamespace(step=0), total=500)
    step_of = operator.attrgetter("progress.step")
    lin = nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def mix(x):
        weight = step_of(run) / run.total  # guilty: follows a count
        run.progress.step += 1  # guilty: follows a count
        return torch.lerp(x, lin(x), weight)  # guilty: follows a count

    return mix, (torch.randn(4, 8, device=device),)


def expert_counter(device):
    experts = nn.ModuleDict({n: nn.Linear(8, 8) for n in "abc"}).to(device)
    load = collections.Counter(dict.fromkeys("abc", 0))

    @torch.no_grad()
    def route(x):
        name = min(load, key=load.__getitem__)  # guilty: the least loaded
        load[name] += 1  # guilty: the least loaded
        return experts[name](x)  # guilty: the least loaded

    return route, (torch.randn(4, 8, device=device),)


async def annealed_sigma():
    sigma = 1.0
    while True:
        await _Yield(sigma)
        sigma *= 0.9


class _Yield:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield self.value


def coroutine_schedule(device):
    schedule = annealed_sigma()
    lin = nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def denoise(x):
        sigma = schedule.send(None)  # guilty: the next sigma
        return x - sigma * lin(x)  # guilty: the next sigma

    return denoise, (torch.randn(4, 8, device=device),)


def cpu_randperm_batch(device):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(64, 8, device=device)
    lin = nn.Linear(8, 1).to(device)

    def loss():
        index = torch.randperm(64, generator=generator)[:16]  # guilty: drawn on the host
        return lin(data[index]).square().mean()  # guilty: drawn on the host

    return loss


def sparse_adjacency_normalized(device):
    nodes = 12
    lin = nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def forward(x, edges):
        values = torch.ones(edges.shape[1], device=x.device)
        a = torch.sparse_coo_tensor(
            edges, values, (nodes, nodes)
        ).coalesce()  # guilty: counts the indices
        degree = torch.sparse.sum(a, 1).to_dense().clamp(min=1)
        return torch.sparse.mm(a, lin(x)) / degree[:, None]

    return forward, (
        torch.randn(nodes, 8, device=device),
        torch.randint(nodes, (2, 30), device=device),
    )


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.updates = torch.zeros((), device=self.shadow[0].device)

    @torch.no_grad()
    def update(self, parameters):
        self.updates += 1
        decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.decay)
        torch._foreach_lerp_(
            self.shadow, [p.detach() for p in parameters], 1 - decay
        )  # guilty: the weight is read


def ema_tensor_weight(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    ema = Ema(model, 0.999)
    x = torch.randn(32, 8, device=device)

    def step():
        loss = model(x).square().mean()
        ema.update(model.parameters())
        return loss.detach()

    return step


MISSING = float("nan")


# a NaN is not equal to itself, and never changes
def nan_constants(device):
    fill = np.nan

    @torch.no_grad()
    def robust_mean(x, mask):
        x = x.masked_fill(mask, MISSING)
        low = torch.where(mask, fill, x * np.float64(0.5))
        return x.nanmean(0), low.nanmean(), x * (1.0 if math.isnan(MISSING) else 0.5)

    return robust_mean, (torch.randn(8, 4, device=device), torch.rand(8, 4, device=device) > 0.7)


def numpy_shape_arithmetic(device):
    class Attention2d(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Conv2d(8, 24, 1)

        def forward(self, x):
            b, c, h, w = x.shape
            n = int(np.prod(x.shape[2:]))
            q, k, v = self.qkv(x).reshape(b, 3, c, n).unbind(1)
            scale = 1.0 / np.sqrt(np.sqrt(c))
            weights = torch.softmax((q * scale).mT @ (k * scale), dim=-1)
            ramp = np.linspace(0.0, 1.0, 4)
            for t in ramp:
                v = v * (1 - 0.1 * float(t))
            return (v @ weights.mT).reshape(b, c, h, w)

    return Attention2d().to(device), (torch.randn(2, 8, 4, 4, device=device),)


def sparse_csr_propagation(device):
    nodes = 12
    dense = (torch.rand(nodes, nodes) > 0.7).float()
    adjacency = dense.to_sparse_csr().to(device)
    lin = nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def propagate(x):
        for _ in range(2):
            x = adjacency @ lin(x)
        return x

    return propagate, (torch.randn(nodes, 8, device=device),)


def packed_activations(device):
    """Activations are saved in half precision."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16))

        def forward(self, x):
            def pack(t):
                return (t.dtype, t.to(torch.bfloat16))

            def unpack(packed):
                return packed[1].to(packed[0])

            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                return self.body(x)

    return Net().to(device), (torch.randn(4, 16, device=device),)


def spectral_norm_critic(device):
    norm = torch.nn.utils.parametrizations.spectral_norm
    critic = nn.Sequential(norm(nn.Linear(8, 32)), nn.LeakyReLU(0.2), norm(nn.Linear(32, 1))).to(
        device
    )
    optimizer = torch.optim.SGD(critic.parameters(), lr=1e-3)
    real, fake = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    def step():
        loss = functional.relu(1 - critic(real)).mean() + functional.relu(1 + critic(fake)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gradient_hooks(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            hidden = self.body(x).relu()
            if hidden.requires_grad:
                hidden.register_hook(lambda g: g * 0.1)
            return self.head(hidden)

    return Net().to(device), (torch.randn(4, 16, device=device),)


def optimizer_in_backward(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    lr = 0.05

    def update(p):
        with torch.no_grad():
            p.add_(p.grad, alpha=-lr)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    x = torch.randn(8, 16, device=device)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def vector_quantizer_ema(device):
    dim, codes, decay = 8, 16, 0.99
    encoder = nn.Linear(16, dim).to(device)
    codebook = torch.randn(codes, dim, device=device)
    cluster = torch.ones(codes, device=device)
    average = codebook.clone()

    def quantize(x):
        z = encoder(x)
        distance = torch.cdist(z.detach(), codebook)
        index = distance.argmin(-1)
        onehot = functional.one_hot(index, codes).to(z.dtype)
        quantized = onehot @ codebook
        with torch.no_grad():
            cluster.lerp_(onehot.sum(0), 1 - decay)
            average.lerp_(onehot.t() @ z.detach(), 1 - decay)
            total = cluster.sum()
            smoothed = (cluster + 1e-5) / (total + codes * 1e-5) * total
            codebook.copy_(average / smoothed[:, None])
        commit = functional.mse_loss(z, quantized)
        return z + (quantized - z).detach(), commit

    return quantize, (torch.randn(8, 16, device=device),)


async def stage(module, x):
    return module(x)


def coroutine_inside(device):
    """A pipeline written as coroutines that never suspend."""
    first, second = nn.Linear(8, 16).to(device), nn.Linear(16, 4).to(device)

    async def pipeline(x):
        hidden = await stage(first, x)
        return await stage(second, hidden.relu())

    @torch.no_grad()
    def forward(x):
        try:
            pipeline(x).send(None)
        except StopIteration as stop:
            return stop.value

    return forward, (torch.randn(4, 8, device=device),)


class Frozen:
    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__[self.slot]

    def __set__(self, instance, value):
        instance.__dict__[self.slot] = value


class Lightning:
    def __init__(self):
        self.global_step, self.precision = 0, "bf16"


class Settled(nn.Module):
    """State in unusual places that nothing changes."""

    scale = Frozen()

    def __init__(self, trainer):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.scale = 0.5
        self.config = types.SimpleNamespace(gate=types.SimpleNamespace(floor=0.1))
        self.floor_of = operator.attrgetter("gate.floor")
        self.squash = functools.partial(torch.clamp, max=6.0)
        object.__setattr__(self, "trainer", weakref.proxy(trainer))

    def forward(self, x):
        with contextlib.ExitStack() as stack:
            if self.trainer.precision == "bf16":
                stack.enter_context(torch.autocast("cuda", torch.bfloat16, cache_enabled=False))
            out = self.lin(x).float() * self.scale + self.floor_of(self.config)
        return self.squash(out)


TRAINER = Lightning()


def settled_host_state(device):
    return Settled(TRAINER).to(device), (torch.randn(4, 8, device=device),)


def selective_checkpoint(device):
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    def policy(ctx, op, *args, **kwargs):
        save = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

        def forward(self, x):
            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            out = checkpoint(
                self.mlp, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
            )
            return x + out

    return Net().to(device), (torch.randn(4, 16, device=device, requires_grad=True),)


def ragged_by_padding(device):
    """Sequences of other lengths, padded: lengths stay on the device."""
    lstm = nn.LSTM(8, 16, batch_first=True).to(device)

    def encode(x, lengths):
        out, _ = lstm(x)
        visible = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
        last = out.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 16))[:, 0]
        pooled = (out * visible[..., None]).sum(1) / lengths[:, None]
        return last, pooled

    return encode, (torch.randn(3, 5, 8, device=device), torch.tensor([5, 2, 3], device=device))

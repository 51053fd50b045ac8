"""Entry points that capture well and replay right: `cgtool check` must find nothing in them."""

from __future__ import annotations

import copy
import logging
import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("innocent")
SCALE = 0.5
SETTINGS = {"heads": 2, "causal": True, "name": "tiny"}


def mlp(device, *more):
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), *more, nn.Linear(16, 8)).to(device)


def rows(device, *shape, grad=False):
    return torch.randn(*(shape or (4, 8)), device=device, requires_grad=grad)


def counter_on_the_device(device):
    count = torch.zeros((), dtype=torch.int64, device=device)

    def run(x):
        count.add_(1)
        return x * count

    return run, (rows(device),)


def dropout(device):
    return mlp(device, nn.Dropout(0.3)), (rows(device),)


def batch_norm(device):
    return mlp(device, nn.BatchNorm1d(16)), (rows(device),)


def convolutions(device):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
    )
    return model.to(device), (rows(device, 2, 3, 8, 8),)


def accumulating_gradients(device):
    model = mlp(device)
    parts = [rows(device) for _ in range(3)]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step():
        for parameter in model.parameters():
            parameter.grad.zero_()
        for part in parts:
            model(part).square().mean().div(len(parts)).backward()

    return step


def sampling_on_the_device(device):
    def draw(logits):
        noise = torch.empty_like(logits).exponential_()
        return (logits.softmax(-1) / noise).argmax(-1)

    return draw, (rows(device, 4, 32),)


def static_key_value_cache(device):
    keys, values = (torch.zeros(2, 16, 8, device=device) for _ in range(2))
    position = torch.zeros(1, dtype=torch.int64, device=device)

    def decode(x):
        keys.index_copy_(1, position, x)
        values.index_copy_(1, position, x * 2)
        visible = torch.arange(16, device=x.device) <= position
        out = functional.scaled_dot_product_attention(
            x, keys, values, attn_mask=visible[None, None]
        )
        position.add_(1).remainder_(16)
        return out

    return decode, (rows(device, 2, 1, 8),)


def _step(device, make, **clip):
    model = mlp(device)
    optimizer = make(model.parameters(), torch.tensor(1e-3, device=device))
    x = rows(device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, **clip)
        optimizer.step()
        return loss.detach()

    return step


def adam_with_a_tensor_rate(device):
    return _step(
        device, lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, capturable=True)
    )


def adamw_with_clipping(device):
    return _step(
        device,
        lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, capturable=True),
        foreach=True,
    )


def rmsprop(device):
    return _step(
        device, lambda parameters, lr: torch.optim.RMSprop(parameters, lr=lr, capturable=True)
    )


def moving_average_of_weights(device):
    model = mlp(device)
    average = copy.deepcopy(model).requires_grad_(False)

    def step(x):
        with torch.no_grad():
            out = model(x)
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)
        return out

    return step, (rows(device),)


def rate_that_a_scheduler_fills(device):
    weight = nn.Parameter(rows(device))
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.Adam([weight], lr=rate, capturable=True)
    optimizer.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step():
        # The scheduler steps between replays.
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()

    return step


def rate_that_a_scheduler_multiplies(device):
    weight = nn.Parameter(rows(device))
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.Adam([weight], lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()
        scheduler.step()  # multiplies the tensor, and a replay does so again

    return step


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            keep = torch.rand((), device=x.device) > 0.2
            x = torch.where(keep, layer(x), x)
        return x


def layer_drop_by_masks(device):
    return LayerDrop().to(device), (rows(device),)


def autocast_without_its_cache(device):
    model = mlp(device)

    def run(x):
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            return model(x)

    return run, (rows(device),)


def checkpointing(device):
    first, second = mlp(device), mlp(device)

    def run(x):
        x = checkpoint(first, x, use_reentrant=False, preserve_rng_state=False)
        return checkpoint(second, x, use_reentrant=False, preserve_rng_state=False)

    return run, (rows(device, grad=True),)


def streams_that_fork_and_join(device):
    side = torch.cuda.Stream()
    left, right = mlp(device), mlp(device)

    def run(x):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            b = right(x)
        a = left(x)
        main.wait_stream(side)
        return a + b

    return run, (rows(device),)


def events_that_fork_and_join(device):
    side = torch.cuda.Stream()

    def run(x):
        begun, done = torch.cuda.Event(), torch.cuda.Event()
        begun.record()
        side.wait_event(begun)
        with torch.cuda.stream(side):
            b = x.sin()
            done.record()
        a = x.cos()
        torch.cuda.current_stream().wait_event(done)
        return a * b

    return run, (rows(device),)


class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.steps, self.names = 0.25, (1, 2, 3), ["a", "b"]
        self.settings = {"eps": 1e-5, "norm": True}
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        for step in self.steps:
            x = self.body(x) * self.scale + step
        if self.settings["norm"] and len(self.names) == 2:
            x = x / (x.norm(dim=-1, keepdim=True) + self.settings["eps"])
        return x


def constant_attributes(device):
    return Constants().to(device), (rows(device),)


class Tables(nn.Module):
    """Fills its cache at the first call, in warm-up."""

    def __init__(self):
        super().__init__()
        self.cache = {}

    def table(self, length, device):
        if length not in self.cache:
            self.cache[length] = torch.arange(length, device=device).float().exp().neg()
        return self.cache[length]

    def forward(self, x):
        return x * self.table(x.shape[-1], x.device)


def caches_filled_once(device):
    return Tables(), (rows(device),)


def lazily_made_once(device):
    cache = []

    def run(x):
        if not cache:
            cache.append(torch.ones_like(x))
        return x + cache[0]

    return run, (rows(device),)


def prints_every_call(device):
    def run(x):
        print("calling with", tuple(x.shape), x.dtype)
        log.debug("shape %s", x.shape)
        return x.relu()

    return run, (rows(device),)


def type_checks(device):
    def run(x, mode="mean"):
        if not isinstance(x, torch.Tensor) or not torch.is_floating_point(x):
            raise TypeError(x)
        assert x.dim() == 2, x.shape
        assert mode in ("mean", "sum")
        return x.mean(0) if mode == "mean" else x.sum(0)

    return run, (rows(device),)


def branches_on_shapes(device):
    def run(x):
        if x.shape[0] > 2 and x.numel() % 2 == 0:
            x = x.view(-1, 2, x.shape[1]).sum(1)
        return x if x.is_contiguous() else x.contiguous()

    return run, (rows(device),)


def einsum(device):
    def run(q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)

    return run, tuple(rows(device, 2, 2, 4, 8) for _ in range(3))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        frequencies = 1 / 10000 ** (torch.arange(0, 8, 2) / 8)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x, positions):
        angles = positions[..., None] * self.frequencies
        cos, sin = (torch.cat((half, half), -1) for half in (angles.cos(), angles.sin()))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


def rotary_embedding(device):
    return Rotary().to(device), (rows(device, 2, 6, 8), torch.arange(6, device=device))


class DenseExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        shares = torch.zeros(*x.shape[:-1], 4, device=x.device).scatter(-1, chosen, weights)
        return sum(expert(x) * shares[..., i, None] for i, expert in enumerate(self.experts))


def experts_with_dense_dispatch(device):
    return DenseExperts().to(device), (rows(device),)


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x):
        hidden = x.new_zeros(x.shape[0], 8)
        states = []
        for step in range(x.shape[1]):
            hidden = self.cell(x[:, step], hidden)
            states.append(hidden)
        return torch.stack(states, 1)


def recurrent_loop(device):
    return Loop().to(device), (rows(device, 2, 5, 8),)


def lstm(device):
    return nn.LSTM(8, 8, 2, batch_first=True).to(device), (rows(device, 2, 5, 8),)


def compiled(device):
    model = torch.compile(mlp(device))

    def run(x):
        return model(x)

    return run, (rows(device),)


def embedding_and_loss(device):
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50)).to(device)

    def loss(ids, targets):
        logits = model(ids)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return loss, tuple(torch.randint(50, (2, 6), device=device) for _ in range(2))


def transformer_layer(device):
    layer = nn.TransformerEncoderLayer(8, SETTINGS["heads"], 16, batch_first=True)
    return layer.to(device), (rows(device, 2, 6, 8),)


def constants_of_the_module(device):
    def run(x):
        return x * SCALE if SETTINGS["causal"] else x

    return run, (rows(device),)


def python_constant_as_scalar_tensor(device):
    def run(x):
        floor = torch.finfo(x.dtype).min
        return torch.where(x > 0, x, torch.full((), floor, device=x.device))

    return run, (rows(device),)


def scalar_of_the_code_on_the_host(device):
    """The same number in every call: as an argument of the kernel it is right for ever."""

    def run(x):
        return x / torch.sqrt(torch.tensor(x.shape[-1], dtype=torch.float32))

    return run, (rows(device),)


def size_computed_on_the_host(device):
    def run(x):
        half = torch.div(x.shape[0], 2, rounding_mode="trunc")
        return x.view(half, -1) * 1

    return run, (rows(device),)


def empty_list_as_tensor(device):
    def run(x):
        return torch.cat((torch.tensor([], dtype=x.dtype, device=x.device), x.flatten()))

    return run, (rows(device),)


def number_assigned_to_a_slice(device):
    def run(x):
        y = torch.zeros_like(x)
        y[:, 1:] = x[:, :-1]
        y[:, 0] = 3
        return y

    return run, (rows(device),)


def asks_and_does_the_same(device):
    model = mlp(device)

    def run(x):
        if not torch.cuda.is_current_stream_capturing():
            log.debug("eager")
        return model(x).detach()

    return run, (rows(device),)


def checks_only_in_eager_mode(device):
    """As libraries do it: what reads a value is left out of the capture, and nothing else is."""
    model = mlp(device)

    def run(x):
        if not torch.cuda.is_current_stream_capturing() and bool(x.isnan().any()):
            raise ValueError("not a number")
        return model(x)

    return run, (rows(device),)


def gradient_penalty(device):
    model = mlp(device)

    def run(x):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=-1) - 1).square().mean()

    return run, (rows(device, grad=True),)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


def custom_backward(device):
    return (lambda x: Straight.apply(x) * 2), (rows(device, grad=True),)


def running_statistics(device):
    mean = torch.zeros(8, device=device)

    def normalize(x):
        with torch.no_grad():
            mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - mean

    return normalize, (rows(device),)


def record_stream_of_what_lives_on(device):
    side = torch.cuda.Stream()

    def run(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.square()
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        return y.sum(0) * 2

    return run, (rows(device),)


def result_in_pinned_memory(device):
    model = mlp(device)
    host = torch.empty(1, pin_memory=True)
    x = rows(device)

    def run():
        model.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
        host.copy_(loss.detach().view(1), non_blocking=True)
        return loss

    return run


def activation_parked_in_pinned_memory(device):
    parked, last = torch.zeros(16, 8, pin_memory=True), torch.zeros(4, 8, pin_memory=True)

    def run(x):
        before = torch.empty(4, 8, device=device)
        before.copy_(last, non_blocking=True)
        y = x.repeat(4, 1) + before.sum()
        parked.copy_(y, non_blocking=True)
        last.copy_(x + 0.5 * before, non_blocking=True)
        return y.relu() + parked.to(device, non_blocking=True)

    return run, (rows(device),)


def hooks_that_are_objects(device):
    model = mlp(device)
    nn.utils.spectral_norm(model[0])
    return model, (rows(device),)


def exchange_by_dlpack(device):
    def run(x):
        stream = torch.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with torch.cuda.stream(stream):
            y = torch.from_dlpack(x * 2)
        return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)) + 1

    return run, (rows(device),)


def hessian_of_a_loss(device):
    data, sign = rows(device, 20, 4), rows(device, 20).sign()

    def loss(theta):
        margin = functional.softplus(-sign * (data @ theta)).mean()
        return margin + 0.05 * theta.square().sum()

    return torch.func.hessian(loss), (rows(device, 4),)


class Adversaries:
    """Losses and distributions are attributes, new ones in each call."""

    def __init__(self, device):
        self.generator, self.critic = (nn.Linear(4, 4).to(device) for _ in range(2))
        self.real = torch.randn(3, 4, device=device)

    def step(self):
        self.generator.zero_grad()
        self.critic.zero_grad()
        self.fake = self.generator(self.real)
        self.loss_critic = self.critic(self.real).mean() - self.critic(self.fake.detach()).mean()
        self.loss_critic.backward()
        self.noise = torch.distributions.Normal(
            self.fake, torch.ones_like(self.fake), validate_args=False
        )
        self.loss_generator = self.noise.log_prob(self.real).mean()
        self.loss_generator.backward()
        return self.loss_critic.detach(), self.loss_generator.detach()


def losses_are_attributes(device):
    return Adversaries(device).step


def warm_up_result_is_gone(device):
    net, x = nn.Linear(4, 4).to(device), torch.randn(3, 4, device=device)
    loss = net(x).square().mean()
    loss.backward()
    detached = loss.detach()
    del loss

    def step():
        net.zero_grad()
        loss = net(x).square().mean() - detached
        loss.backward()
        return loss.detach()

    return step


def pruned_before_it_moves(device):
    net = nn.Linear(4, 4)
    prune.l1_unstructured(net, "weight", amount=0.5)
    return net.to(device), (torch.randn(3, 4, device=device),)


def torchscript_compiles_in_its_second_call(device):
    x = rows(device)
    return torch.no_grad()(torch.jit.freeze(torch.jit.trace(mlp(device).eval(), x))), (x,)


def tensors_without_elements_are_read(device):
    x = rows(device)
    kept = torch.empty(0, 8, device=device)

    def step(filled=0):
        nonlocal kept
        grown, workspace = torch.empty(0, device=device), torch.empty(16, 8, device=device)
        for part in x.chunk(2):
            grown = torch.cat((grown, part.flatten()))
        workspace[filled : filled + 4] = torch.vstack([kept, workspace[:filled], x])
        kept = x[:0]
        nothing = torch.empty(4, 0, device=device) @ torch.empty(0, 8, device=device)
        return grown + 1, workspace[:4] * 2 + nothing

    return step


class Focal(nn.Module):
    def __init__(self, gamma, weight):
        super().__init__()
        self.gamma = gamma
        self.scale = nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return (1 - x.sigmoid()) ** self.gamma * self.scale


def module_is_made_in_each_call(device):
    x, weight = rows(device), rows(device, 8)
    kept = Focal(1.0, weight)

    def step():
        nonlocal kept
        y = Focal(2.0, weight)(x) + kept(x)
        kept = Focal(1.0, weight)
        return y

    return step


class Trunk:
    def __init__(self, device):
        self.net, self.x = mlp(device), rows(device)
        self.view = copy.copy(self.net)

    def step(self):
        wrapped = nn.Sequential(self.net, nn.ReLU())
        y = self.view(self.x) + wrapped(self.x)
        self.view = copy.copy(self.net)
        return y.detach()


def views_of_modules_are_made_anew(device):
    return Trunk(device).step

"""State of Python that changes within a call and is as before at its end, and state that is not."""

import contextlib
import contextvars
import copy
import dataclasses
import itertools
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional


class LayerCounter:
    """Hooks count the attention layers of a pass; after the last one they begin again."""

    def __init__(self, layers):
        self.layers, self.current = layers, 0

    def __call__(self, module, args, output):
        strength = 1.0 / (1 + self.current)
        self.current = (self.current + 1) % self.layers
        return output * strength


def attention_layers_counted_by_hooks(device):
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))).to(device)
    counter = LayerCounter(len(model))
    for layer in model:
        layer.register_forward_hook(counter)
    return model, (torch.randn(4, 6, device=device),)


def ring_rotated_all_the_way(device):
    ring = deque(torch.randn(4, 6, 6, device=device).unbind())

    def mix(x):
        for _ in range(len(ring)):
            x = torch.tanh(x @ ring[0])
            ring.rotate(1)
        return x

    return mix, (torch.randn(3, 6, device=device),)


def ring_rotated_by_one(device):
    ring = deque(torch.randn(4, 6, 6, device=device).unbind())

    def mix(x):
        x = torch.tanh(x @ ring[0])  # guilty: the matrix of the capture
        ring.rotate(1)  # guilty: turns only when Python runs
        return x

    return mix, (torch.randn(3, 6, device=device),)


def host_draws_from_a_restored_state(device):
    """The state of the global generator is put back, and the draws are the same in each call."""
    images = torch.rand(2, 3, 12, 12, device=device)
    convolution = nn.Conv2d(3, 4, 3).to(device)

    def evaluate(images):
        before = random.getstate()
        random.seed(7)
        tops = [random.randrange(4) for _ in range(2)]
        random.setstate(before)
        return sum(convolution(images[..., top : top + 8, :]).mean() for top in tops)

    return evaluate, (images,)


def chunks_in_a_fixed_random_order(device):
    mixer = nn.GRUCell(4, 4).to(device)

    def forward(x):
        order = torch.randperm(4, generator=torch.Generator().manual_seed(3)).tolist()
        h = x.new_zeros(x.shape[0], 4)
        for number in order:
            h = mixer(x[:, number], h)
        return h

    return forward, (torch.randn(2, 4, 4, device=device),)


def memories_in_a_random_order(device):
    """The generator goes on, so the order is another one in each call."""
    mixer = nn.GRUCell(4, 4).to(device)
    generator = torch.Generator().manual_seed(3)

    def forward(x):
        order = torch.randperm(4, generator=generator).tolist()  # guilty: drawn on the host
        h = x.new_zeros(x.shape[0], 4)
        for number in order:  # guilty: the order of the capture
            h = mixer(x[:, number], h)  # guilty: the chunk of the capture
        return h

    return forward, (torch.randn(2, 4, 4, device=device),)


class Tied(nn.Module):
    """The weights are tied again in each call, to the same parameter."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 6), nn.Linear(6, 12)

    def forward(self, tokens):
        self.head.weight = self.embed.weight
        return self.head(self.embed(tokens).mean(1))


def head_tied_in_each_call(device):
    return Tied().to(device), (torch.randint(12, (3, 5), device=device),)


def dropout_on_for_one_of_two_passes(device):
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 3)).to(device).eval()

    def consistency(x):
        sure = model(x).log_softmax(-1)
        model.train()
        try:
            noisy = model(x).log_softmax(-1)
        finally:
            model.eval()
        return functional.kl_div(noisy, sure, reduction="batchmean", log_target=True)

    return consistency, (torch.randn(5, 6, device=device),)


def generator_step_with_a_frozen_critic(device):
    generator, critic = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (generator, critic)]
    z, real = torch.randn(8, 4, device=device), torch.randn(8, 6, device=device)

    def step():
        critic.requires_grad_(False)
        optimizers[0].zero_grad()
        loss = functional.softplus(-critic(generator(z))).mean()
        loss.backward()
        optimizers[0].step()
        critic.requires_grad_(True)
        optimizers[1].zero_grad()
        fake = critic(generator(z).detach())
        critics = functional.softplus(fake).mean() + functional.softplus(-critic(real)).mean()
        critics.backward()
        optimizers[1].step()
        return loss.detach(), critics.detach()

    return step


depth = contextvars.ContextVar("depth", default=0)


class Nested(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.linear, self.inner = nn.Linear(5, 5), inner

    def forward(self, x):
        token = depth.set(depth.get() + 1)
        try:
            y = self.linear(x) * 0.5 ** depth.get()
            return y if self.inner is None else self.inner(y)
        finally:
            depth.reset(token)


def depth_in_a_context_variable(device):
    return Nested(Nested(Nested())).to(device), (torch.randn(3, 5, device=device),)


def ranges_with_a_new_name_in_each_call(device):
    model = nn.Linear(6, 3).to(device)
    calls = itertools.count()

    def forward(x):
        with torch.profiler.record_function(f"call {next(calls)}"):
            return model(x).softmax(-1)

    return forward, (torch.randn(4, 6, device=device),)


@dataclasses.dataclass(frozen=True)
class Settings:
    dropout: float = 0.0
    scale: float = 1.0


def settings_replaced_by_equal_ones(device):
    base = Settings()
    model = nn.Linear(6, 3).to(device)

    def forward(x):
        settings = dataclasses.replace(base, scale=base.scale * 0.5)
        return model(x) * settings.scale

    return forward, (torch.randn(4, 6, device=device),)


@dataclasses.dataclass(frozen=True)
class TrainState:
    step: int
    rate: float

    def advanced(self):
        return dataclasses.replace(self, step=self.step + 1, rate=self.rate * 0.99)


def rate_in_a_replaced_state(device):
    model = nn.Linear(6, 1).to(device)
    x, y = torch.randn(8, 6, device=device), torch.randn(8, 1, device=device)
    state = TrainState(0, 0.1)

    def step():
        nonlocal state
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(state.rate * p.grad)  # guilty: the rate of the capture
        state = state.advanced()  # guilty: another state only when Python runs
        return loss

    return step


class Averaged:
    """Weights are exchanged for their averages and put back, as in many EMA libraries."""

    def __init__(self, model):
        self.model = model
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @contextlib.contextmanager
    def applied(self):
        kept = [p.detach().clone() for p in self.model.parameters()]
        with torch.no_grad():
            for p, average in zip(self.model.parameters(), self.shadow, strict=True):
                p.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for p, own in zip(self.model.parameters(), kept, strict=True):
                    p.copy_(own)


def validation_under_averaged_weights(device):
    model = nn.Linear(6, 3).to(device)
    averaged = Averaged(model)
    with torch.no_grad():
        model.weight.mul_(1.5)

    @torch.no_grad()
    def validate(x):
        with averaged.applied():
            smooth = model(x)
        return smooth, model(x)

    return validate, (torch.randn(4, 6, device=device),)


class Swapped(Averaged):
    """Exchanges the tensors instead of what is in them, and never back."""

    def swap(self):
        for number, p in enumerate(self.model.parameters()):
            p.data, self.shadow[number] = self.shadow[number], p.data  # guilty: other memory


def weights_swapped_with_averages(device):
    model = nn.Linear(6, 3).to(device).requires_grad_(False)
    averaged = Swapped(model)
    averaged.shadow = [p * 0.5 for p in averaged.shadow]

    def predict(x):
        averaged.swap()
        return model(x)  # guilty: with the weights of the capture

    return predict, (torch.randn(4, 6, device=device),)


def reset_to_a_snapshot(device):
    """Reptile: from the same weights in each call, and a move of these towards the result."""
    model = nn.Linear(6, 1).to(device)
    start = copy.deepcopy(model.state_dict())
    x, y = torch.randn(8, 6, device=device), torch.randn(8, 1, device=device)

    def step():
        model.load_state_dict(start)
        for _ in range(2):
            loss = functional.mse_loss(model(x), y)
            grads = torch.autograd.grad(loss, [*model.parameters()])
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads, strict=True):
                    p.sub_(0.1 * g)
        with torch.no_grad():
            for name, p in model.named_parameters():
                start[name].lerp_(p, 0.1)
        return loss

    return step


def snapshots_in_turn(device):
    model = nn.Linear(6, 3).to(device).requires_grad_(False)
    snapshots = [{k: v * (i + 1) for k, v in model.state_dict().items()} for i in range(3)]
    turn = itertools.cycle(range(3))

    def predict(x):
        model.load_state_dict(snapshots[next(turn)])  # guilty: the snapshot of the capture
        return model(x)

    return predict, (torch.randn(4, 6, device=device),)

"""Entry points whose replays are right; nothing may be found in them."""

import asyncio
import contextlib
import functools
import logging
import logging.handlers
import random
import types

import numpy as np
import torch
from torch import nn


def model(device):
    net = nn.Linear(4, 1).to(device)
    return net, torch.randn(8, 4, device=device)


def parameter_in_pieces(device):
    # Autograd gives up the pieces of the iteration before when `flat` is written in place.
    flat = nn.Parameter(torch.ones(6, device=device))
    pieces = []

    def f(x):
        pieces[:] = flat.split(3)
        return x * pieces[0] + pieces[1]

    return f, (torch.randn(3, device=device),)


def accumulating_gradients(device):
    net, x = model(device)

    def step():
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


def gradients_set_to_none_first(device):
    net, x = model(device)

    def step():
        net.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


def gradients_set_to_none_last(device):
    net, x = model(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step():
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def capturable_adam_with_a_tensor_lr(device):
    net, x = model(device)
    lr = torch.tensor(0.1, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, capturable=True)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        lr.mul_(0.5)
        return loss

    return step


def optimizers_in_hooks_of_parameters(device):
    net, x = model(device)
    for parameter in net.parameters():
        optimizer = torch.optim.Adam([parameter], capturable=True)

        def step_and_clear(_parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step_and_clear)

    def step():
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


def recurrent(device):
    net = nn.LSTM(4, 4, 2, batch_first=True).to(device)
    return net, (torch.randn(2, 3, 4, device=device),)


class Answers(dict):
    """Not known to PyTorch's pytree."""


def objects_as_outputs(device):
    net, x = model(device)

    def run(x):
        answer = types.SimpleNamespace(scores=[net(x)], model=net)
        return Answers(loss=net(x).sum(), rest=(answer, Answers(x=x * 2)))

    return run, (x,)


def dropout_and_batch_norm(device):
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).to(device)
    return net, (torch.randn(4, 8, device=device, requires_grad=True),)


def device_random_numbers(device):
    generator = torch.Generator(device).manual_seed(3)

    def noisy(x):
        return x + torch.randn(x.shape, generator=generator, device=x.device) + torch.rand_like(x)

    return noisy, (torch.zeros(8, device=device),)


def key_value_cache(device):
    cache = torch.zeros(16, 4, device=device)
    position = torch.zeros(1, dtype=torch.int64, device=device)

    def decode(x):
        cache.index_copy_(0, position, x)
        position.add_(1)
        return cache.sum(0)

    return decode, (torch.ones(1, 4, device=device),)


def returns_its_state_and_its_input(device):
    total = torch.zeros(4, device=device)

    def add(x):
        total.add_(x)
        return total, x, x[1:], x * 2

    return add, (torch.ones(4, device=device),)


def cached_table(device):
    weight = torch.randn(4, device=device)

    @functools.lru_cache
    def table(count):
        return torch.arange(count, device=device) * weight

    return lambda x: x + table(4), (torch.zeros(2, 4, device=device),)


class Counted(nn.Module):
    """Keeps a log that nothing on the device reads."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.log = []

    def forward(self, x):
        self.calls += 1
        self.log.append(self.calls)
        self.last = x * 3
        return x * 2


def counts_for_the_log(device):
    return Counted().to(device), (torch.ones(4, device=device),)


def tensors_of_the_host_that_a_step_reads(device):
    x = torch.randn(4, device=device)
    mask, ends = torch.tensor([True, False, True, False]), torch.tensor([1, 3])

    def step():
        return x.index_put((mask,), x[:2]), torch.tensor_split(x, ends)

    return step


def scratch_that_is_filled(device):
    def fill(x):
        scratch = torch.empty_like(x)
        scratch.copy_(x)
        return scratch * 2

    return fill, (torch.ones(4, device=device),)


def awkward_inputs(device):
    """Nested, expanded, sorted, of every kind of number."""

    def use(batch, offsets, mask):
        x = batch["x"] * batch["wide"]
        kept = torch.where(mask, x.real, torch.zeros_like(x.real))
        return kept + offsets.diff().sum() + batch["half"].sum() + batch["bias"]

    batch = {
        "x": torch.randn(4, 4, dtype=torch.complex64, device=device),
        "wide": torch.ones(1, 4, device=device).expand(4, 4),
        "half": torch.randn(3, device=device, dtype=torch.bfloat16),
        "bias": torch.tensor([0.0, float("-inf"), 0.0, 1.0], device=device),
    }
    offsets = torch.tensor([0, 2, 5, 9], device=device)
    return use, (batch, offsets, torch.tensor([True, False, True, True], device=device))


def two_callables(device):
    first = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
    second = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.3)).to(device)
    x = torch.randn(3, 4, device=device)
    return (first, second), ((x,), (torch.randn(3, 4, device=device, requires_grad=True),))


def asks_and_does_the_same(device):
    def scale(x):
        torch.cuda.is_current_stream_capturing()
        return x * 2

    return scale, (torch.ones(4, device=device),)


def nan_on_purpose(device):
    return lambda x: torch.log(x - 10), (torch.rand(4, device=device),)


def matrix_products(device):
    left, right = torch.randn(16, 16, device=device), torch.randn(16, 16, device=device)
    return lambda x: x @ left @ right, (torch.randn(16, 16, device=device),)


CHANCE = random.SystemRandom()


@torch.library.custom_op("cgtool_tests::atomic_sum", mutates_args=())
def atomic_sum(x: torch.Tensor) -> torch.Tensor:
    """In another order each time."""
    order = list(range(len(x)))
    CHANCE.shuffle(order)
    # As blocks of sixteen threads do.
    of_threads, total = torch.zeros(16, dtype=x.dtype), torch.zeros((), dtype=x.dtype)
    for values in x[torch.tensor(order)].reshape(-1, 16).unbind():
        of_threads += values
    for value in of_threads.unbind():
        total += value
    return total


def random_numbers_of_the_system(device):
    def step(x):
        return x * (2 if CHANCE else 3)

    return step, (torch.randn(4, device=device),)


def sums_as_atomics_do(device):
    def total(x):
        return atomic_sum(x) * 2

    return total, (torch.randn(256, device=device) * 1000,)


def sums_as_atomics_do_beside_empty(device):
    def total(x):
        scaled = torch.empty_like(x).copy_(x)
        return atomic_sum(scaled) * 2

    return total, (torch.randn(256, device=device) * 1000,)


def jagged_output(device):
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
    return lambda: ragged * 2


def nested_output(device):
    parts = [torch.randn(3, 8, device=device), torch.randn(5, 8, device=device)]
    ragged = torch.nested.nested_tensor(parts)
    return lambda: ragged * 2


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})))


class NamedWrapper(Wrapper):
    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return NamedWrapper(inner["inner"])


def wrapped_weight(device):
    weight = Wrapper(torch.randn(4, 4, device=device))
    return lambda x: torch.mm(x, weight).inner, (torch.randn(2, 4, device=device),)


def wrapped_input_and_output(device):
    weight = NamedWrapper(torch.randn(4, 4, device=device))
    return torch.mm, (torch.randn(4, 4, device=device), weight)


def opaque_output(device):
    x = torch.randn(4, device=device)
    return lambda: Wrapper(x * 2)


def wrapper_that_outlives_its_transform(device):
    net, x = model(device)
    last = []

    def row(values):
        last[:] = [net(values)]
        return last[0].square()

    def batch(x):
        return torch.func.vmap(row)(x)

    return batch, (x,)


class CountedOnHost(nn.Module):
    """Its calls are counted in a buffer that was never moved to the device, and that no op uses."""

    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(4, 4, device=device)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


def calls_counted_on_the_host(device):
    return CountedOnHost(device), (torch.randn(2, 4, device=device),)


def sparse_matrix_that_is_kept(device):
    indices = torch.tensor([[0, 1, 3], [2, 0, 1]], device=device)
    matrix = torch.sparse_coo_tensor(indices, torch.ones(3, device=device), (4, 4)).coalesce()
    return lambda x: (matrix * 2.0).to_dense() + x, (torch.randn(4, 4, device=device),)


def numbers_of_numpy(device):
    deviation, mean = np.float64(0.22), np.array([0.4, 0.5, 0.6, 0.7])
    mean.flags.writeable = False

    def normalize(x):
        return (x - mean[0]) / deviation

    return normalize, (torch.randn(8, 4, device=device),)


def scratch_memory_for_each_stream(device):
    layer, x = nn.Linear(4, 4).to(device), torch.randn(2, 4, device=device)
    scratch = {}

    @torch.no_grad()
    def forward(x):
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in scratch:
            scratch[stream] = torch.empty(2, 4, device=x.device)
        return layer(torch.mul(x, 2.0, out=scratch[stream]))

    return forward, (x,)


def critic_frozen_after_its_backward(device):
    critic, x = model(device)
    generator = nn.Linear(4, 4).to(device)

    def step():
        critic.requires_grad_(True)
        critic.zero_grad(set_to_none=True)
        generator.zero_grad(set_to_none=True)
        fake = generator(torch.randn_like(x))
        loss = critic(fake.detach()).mean() - critic(x).mean()
        loss.backward()
        critic.requires_grad_(False)
        critic(fake).mean().backward()
        return loss

    return step


class Gathered(nn.Module):
    """As in sharded training: the weight has memory only while it is used, or until it is freed by
    hand."""

    def __init__(self, frees):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.frees = frees
        self.register_buffer("shards", torch.randn(2, 8))

    def forward(self, x):
        storage = self.layer.weight.untyped_storage()
        if storage.size() == 0:
            storage.resize_(64)
            torch.cat(self.shards.unbind(), out=self.layer.weight.view(-1))
        y = self.layer(x)
        if self.frees:
            storage.resize_(0)
        return y, self.layer.weight


def gathered(device, frees):
    net = Gathered(frees).requires_grad_(False).to(device)
    net.layer.weight.untyped_storage().resize_(0)
    return net, torch.randn(3, 4, device=device)


def weight_freed_after_each_call(device):
    return gathered(device, frees=True)


def weight_gathered_once(device):
    return gathered(device, frees=False)


def coroutine_with_state_in_place(device):
    def averages(state):
        answer = None
        while True:
            value = yield answer
            state.mul_(0.9).add_(value)
            answer = state.clone()

    average = averages(torch.zeros(5, device=device))
    next(average)
    return (lambda x: average.send(x)), (torch.randn(5, device=device),)


def coroutine_with_state_that_it_rebinds(device):
    def averages(state):
        answer = None
        while True:
            value = yield answer
            state = state.mul_(0.9).add_(value)
            answer = state.clone()

    average = averages(torch.zeros(5, device=device))
    next(average)
    return (lambda x: average.send(x)), (torch.randn(5, device=device),)


def state_in_a_stack(device):
    stack, state = contextlib.ExitStack(), torch.zeros(5, device=device)
    stack.enter_context(contextlib.nullcontext())
    stack.callback(state.zero_)

    def held():
        return stack._exit_callbacks[1][1].__wrapped__.__self__

    return (lambda x: held().add_(x) * 2), (torch.ones(5, device=device),)


def state_of_a_log_handler(device):
    class Kept(logging.Handler):
        def emit(self, record):
            self.state.add_(record.args[0] if isinstance(record.args, tuple) else record.args)

    log = logging.getLogger("state_of_a_log_handler")
    log.handlers, log.propagate = [Kept()], False
    log.handlers[0].state = torch.zeros(5, device=device)

    def forward(x):
        log.error("%s", x)
        return log.handlers[0].state * 2

    return forward, (torch.ones(5, device=device),)


def state_of_a_handler_of_the_library(device):
    handler = logging.handlers.MemoryHandler(100)
    handler.buffer.append(torch.zeros(5, device=device))
    return (lambda x: handler.buffer[0].add_(x) * 2), (torch.ones(5, device=device),)


def state_in_a_module_made_by_hand(device):
    config = types.ModuleType("config")
    config.state = torch.zeros(5, device=device)
    return (lambda x: config.state.add_(x) * 2), (torch.ones(5, device=device),)


def state_in_a_queue_of_tasks(device):
    tasks = asyncio.Queue()
    tasks.put_nowait(torch.zeros(5, device=device))

    def forward(x):
        state = tasks.get_nowait()
        tasks.put_nowait(state.add_(x))
        return state * 2

    return forward, (torch.ones(5, device=device),)


def state_in_an_array_of_objects(device):
    states = np.array([torch.zeros(5, device=device), None], dtype=object)
    return (lambda x: states[0].add_(x) * 2), (torch.ones(5, device=device),)


def state_of_a_distribution(device):
    zeros = torch.zeros(5, device=device)
    law = torch.distributions.Normal(zeros, zeros + 1)
    return (lambda x: law.loc.add_(x) * law.scale), (torch.ones(5, device=device),)

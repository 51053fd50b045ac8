"""Where Python programs keep numbers and tensors between calls: caches with limits, weak
references, shared values, byte arrays, contexts, seeds; and what only looks like state."""

from __future__ import annotations

import array
import contextvars
import dataclasses
import enum
import functools
import hashlib
import logging
import math
import multiprocessing
import os
import random
import statistics
import time
import types
import warnings
import weakref

import numpy as np
import torch
from torch import nn

logger = logging.getLogger(__name__)


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# Two windows push each other out of the cache, so each call makes both tables anew.
def cache_of_one_entry(device):
    layer, x = _layer_and_input(device)

    @functools.lru_cache(maxsize=1)
    def window(n):
        return torch.tensor(
            [0.5 - 0.5 * math.cos(i / n) for i in range(8)], device=device
        )  # guilty: from a list

    def forward(x):
        return layer(x) * window(3) + x * window(5)

    return forward, (x,)


# With room for both, the tables are made in the warm-up and stay.
def cache_of_two_entries(device):
    layer, x = _layer_and_input(device)

    @functools.lru_cache(maxsize=2)
    def window(n):
        return torch.tensor([0.5 - 0.5 * math.cos(i / n) for i in range(8)], device=device)

    def forward(x):
        return layer(x) * window(3) + x * window(5)

    return forward, (x,)


# Nothing else holds the table, so it dies with the call that made it.
def weak_cache_forgets(device):
    layer, x = _layer_and_input(device)
    tables = weakref.WeakValueDictionary()

    def table(n):
        found = tables.get(n)
        if found is None:
            found = torch.tensor(
                [math.sin(i) for i in range(n)], device=device
            )  # guilty: each call
            tables[n] = found
        return found

    def forward(x):
        return layer(x) + table(8)

    return forward, (x,)


# The layer holds the table, so the weak cache keeps it.
def weak_cache_remembers(device):
    layer, x = _layer_and_input(device)
    tables, held = weakref.WeakValueDictionary(), []

    def table(n):
        found = tables.get(n)
        if found is None:
            found = torch.tensor([math.sin(i) for i in range(n)], device=device)
            tables[n] = found
            held.append(found)
        return found

    def forward(x):
        return layer(x) + table(8)

    return forward, (x,)


# The table expires after an hour; a replay reads the old one.
def cache_that_expires(device):
    layer, x = _layer_and_input(device)
    kept = {"at": -math.inf, "scale": 1.0}

    def forward(x):
        now = time.monotonic()  # guilty: the clock of the capture
        if now - kept["at"] > 3600:  # guilty: a branch on the clock
            kept.update(at=now, scale=kept["scale"] * 0.9)
        return layer(x) * kept["scale"]  # guilty: the number of the capture

    return forward, (x,)


# The clock only goes into a message, which nobody sees.
def durations_are_logged(device):
    layer, x = _layer_and_input(device)

    def forward(x):
        start = time.perf_counter()
        y = layer(x).relu()
        logger.debug("forward took %.3f ms", 1e3 * (time.perf_counter() - start))
        return y

    return forward, (x,)


# Without a handler, logging prints warnings to standard error, and formats the tensor for it.
def warning_is_logged(device):
    layer, x = _layer_and_input(device)
    log = logging.getLogger("training.loss")

    def forward(x):
        loss = layer(x).square().mean()
        log.warning("loss is %s", loss)  # guilty: formats a tensor of the device
        return loss

    return forward, (x,)


# Only the shape is formatted, and the same warning is shown once.
def warning_of_a_shape(device):
    layer, x = _layer_and_input(device)

    def forward(x):
        if x.shape[0] % 8:
            warnings.warn(f"{tuple(x.shape)} is no multiple of 8", stacklevel=2)
        return layer(x)

    return forward, (x,)


# The epoch is shared with the workers of the loader.
def epoch_in_a_shared_value(device):
    layer, x = _layer_and_input(device)
    shared = multiprocessing.Value("i", 0)

    def forward(x):
        with shared.get_lock():
            shared.value += 1  # guilty: no replay counts
        return layer(x) * 0.5 ** (shared.value // 500)  # guilty: the power of the capture

    return forward, (x,)


# The counts of the experts are bytes.
def counts_in_a_byte_array(device):
    layer, x = _layer_and_input(device)
    counts = bytearray(8)

    def forward(x):
        least = counts.index(min(counts))
        counts[least] = min(255, counts[least] + 1)  # guilty: no replay counts
        return layer(x)[:, least]  # guilty: the column of the capture

    return forward, (x,)


# A table of the standard library that nothing writes.
def table_in_an_array(device):
    layer, x = _layer_and_input(device)
    factors = array.array("d", [0.5, 1.0, 2.0])

    def forward(x):
        return sum(factor * layer(x) for factor in factors)

    return forward, (x,)


level = contextvars.ContextVar("level", default=0)


# The context is a copy: what is set in it is gone after the call.
def level_in_a_copied_context(device):
    layer, x = _layer_and_input(device)

    def inner(x):
        level.set(level.get() + 1)
        return layer(x) * (1 + level.get())

    def forward(x):
        return contextvars.copy_context().run(inner, x)

    return forward, (x,)


# One context for all calls: what is set in it stays.
def level_in_a_kept_context(device):
    layer, x = _layer_and_input(device)
    context = contextvars.copy_context()

    def inner(x):
        level.set(level.get() + 1)  # guilty: no replay sets it
        return layer(x) / (1 + level.get() // 400)  # guilty: the divisor of the capture

    def forward(x):
        return context.run(inner, x)

    return forward, (x,)


# The generator is made anew with the same seed in each call: the same order every time.
def same_order_in_each_call(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)

    def forward(x):
        order = list(range(4))
        random.Random(7).shuffle(order)
        for i in order:
            x = blocks[i](x).tanh()
        return x

    return forward, (torch.randn(4, 8, device=device),)


# The seeds are spawned, and each call spawns others.
def spawned_seeds(device):
    layer, x = _layer_and_input(device)
    root = np.random.SeedSequence(3)

    def forward(x):
        (child,) = root.spawn(1)  # guilty: no replay spawns
        return layer(x) * float(np.random.default_rng(child).uniform(0.5, 1.5))  # guilty: frozen

    return forward, (x,)


# The order is a hash of the number of the call.
def shuffled_by_a_digest(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)
    digest = hashlib.sha256(b"seed")

    def forward(x):
        digest.update(b"step")  # guilty: no replay updates it
        for i in sorted(range(4), key=lambda i: digest.digest()[i]):  # guilty: order of the capture
            x = blocks[i](x).tanh()
        return x

    return forward, (torch.randn(4, 8, device=device),)


class Phase(enum.Enum):
    WARM = "warm"
    FULL = "full"

    def scale(self):
        match self:
            case Phase.WARM:
                return 0.1
            case Phase.FULL:
                return 1.0


@dataclasses.dataclass(frozen=True)
class TrainState:
    step: int
    weight: torch.Tensor
    phase: Phase = Phase.WARM

    def advance(self, grad):
        step = self.step + 1
        phase = Phase.FULL if step >= 700 else Phase.WARM
        return dataclasses.replace(
            self, step=step, phase=phase, weight=self.weight - 0.1 * phase.scale() * grad
        )


# A function of its arguments: the state of the caller does not change.
def state_in_and_out(device):
    layer, x = _layer_and_input(device)
    start = TrainState(0, torch.zeros(8, device=device))

    def step(x):
        return start.advance(layer(x).mean(0)).weight

    return step, (x,)


# The state of the last call is kept: its number and its tensor are those of the capture.
def state_is_kept(device):
    layer, x = _layer_and_input(device)
    box = types.SimpleNamespace(state=TrainState(0, torch.zeros(8, device=device)))

    @torch.no_grad()
    def step(x):
        old = box.state
        weight = old.weight - 0.1 * layer(x).mean(0)  # guilty: the tensor of the warm-up
        box.state = dataclasses.replace(old, step=old.step + 1, weight=weight)  # guilty: kept
        return weight.clone()

    return step, (x,)


# The environment is the memory of some launchers.
def step_in_the_environment(device):
    layer, x = _layer_and_input(device)
    os.environ["TRAIN_STEP"] = "0"

    def forward(x):
        step = int(os.environ["TRAIN_STEP"])
        os.environ["TRAIN_STEP"] = str(step + 1)  # guilty: no replay writes it
        return layer(x) * min(1.0, (step + 1) / 1000)  # guilty: the factor of the capture

    return forward, (x,)


# Numbers of NumPy are numbers: they are handed to the kernels as constants.
def numbers_of_numpy(device):
    layer, x = _layer_and_input(device)
    betas, row = np.linspace(0.1, 0.9, 4, dtype=np.float32), np.int64(2)

    def forward(x):
        y = layer(x)
        for beta in betas:
            y = y * float(beta) + torch.full((), float(np.sqrt(beta)), device=x.device)
        return y[row] + y[:, np.argmax(betas)].sum()

    return forward, (x,)


# The mean of the last losses is the baseline; the losses are numbers that are read each time.
def baseline_of_the_last_losses(device):
    layer, x = _layer_and_input(device)
    history = [1.0]

    def forward(x):
        baseline = statistics.fmean(history[-10:])
        loss = layer(x).square().mean() - baseline
        history.append(float(loss.detach()))  # guilty: reads the loss
        return loss

    return forward, (x,)


# Membership by identity: `is` decides before `==` is asked, and a set goes by the hash.
def membership_by_identity(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)
    frozen = {model[0].weight, model[0].bias}
    first = [model[0].weight]

    def forward(x):
        penalty = sum(p.square().sum() for p in model.parameters() if p not in frozen)
        return model(x).mean() + penalty * (2.0 if model[0].weight in first else 1.0)

    return forward, (torch.randn(4, 8, device=device),)


# A list compares by `==` until the tensor itself is met, and reads each answer.
def membership_in_a_list(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)
    decayed = [model[0].weight, model[2].weight]
    for p in decayed:
        p.data.copy_(p.data.mean())

    def forward(x):
        penalty = decayed[1].new_zeros(())
        if model[2].weight[:1, :1] in [w[:1, :1] for w in decayed]:  # guilty: truth of `==`
            penalty = model[2].weight.square().sum()
        return model(x).mean() + penalty

    return forward, (torch.randn(4, 8, device=device),)


# The list grows: the argument is the memory.
def history_as_an_argument(device):
    layer, x = _layer_and_input(device)
    history = []

    @torch.no_grad()
    def forward(x, past):
        y = layer(x).mean()
        past.append(y)  # guilty: no replay appends
        return torch.stack(past[-600:]).mean()  # guilty: as many as at the capture

    return functools.partial(forward, past=history), (x,)

"""Training states that are objects: copied, replaced, nested, or kept on parameters."""

import copy
import dataclasses
import enum
import random
import weakref
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


def _net(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5)).to(device)


def _batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 12, device=device), torch.randint(5, (16,), device=device)


class TrainState(NamedTuple):
    """As in JAX."""

    params: dict[str, torch.Tensor]
    momentum: dict[str, torch.Tensor]
    step: torch.Tensor


def _advanced(model, state, x, y):
    def loss_of(params):
        return functional.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

    grads, loss = torch.func.grad_and_value(loss_of)(state.params)
    momentum = {n: 0.9 * m + grads[n] for n, m in state.momentum.items()}
    rate = 0.05 / (1 + 0.01 * state.step)  # guilty: of the state before the capture
    params = {n: p - rate * momentum[n] for n, p in state.params.items()}
    return TrainState(params, momentum, state.step + 1), loss


def _initial(model, device):
    params = {n: p.detach().clone() for n, p in model.named_parameters()}
    zeros = {n: torch.zeros_like(p) for n, p in params.items()}
    return TrainState(params, zeros, torch.zeros((), device=device))


def state_is_returned_and_bound(device):
    model, (x, y) = _net(device), _batch(device)
    state = _initial(model, device)

    def step():
        nonlocal state
        state, loss = _advanced(model, state, x, y)  # guilty: the state before the capture
        return loss

    return step


def state_is_returned_and_copied(device):
    model, (x, y) = _net(device), _batch(device)
    state = _initial(model, device)

    def step():
        new, loss = _advanced(model, state, x, y)
        for name, p in state.params.items():
            p.copy_(new.params[name])
            state.momentum[name].copy_(new.momentum[name])
        state.step.copy_(new.step)
        return loss

    return step


@dataclasses.dataclass(frozen=True)
class Progress:
    step: int
    scale: torch.Tensor


def progress_is_replaced_but_not_used(device):
    """The number in it is only for a log."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    progress = Progress(0, torch.tensor(0.5, device=device))

    def step():
        nonlocal progress
        progress = dataclasses.replace(progress, step=progress.step + 1)
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y) * progress.scale
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def view_of_a_module_is_made_anew(device):
    """A shallow copy has the same parameters as the module."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    view = copy.copy(model)

    def step():
        nonlocal view
        opt.zero_grad()
        loss = functional.cross_entropy(view(x), y)
        loss.backward()
        opt.step()
        view = copy.copy(model)
        return loss.detach()

    return step


class Recorder:
    """Callbacks reach their trainer by a weak reference."""

    def __init__(self, trainer):
        self.trainer = weakref.proxy(trainer)

    def weight(self):
        return 0.1 + 0.9 * (self.trainer.finished / 10_000)


class CallbackTrainer:
    def __init__(self, device):
        self.model, (self.x, self.y) = _net(device), _batch(device)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.05)
        self.finished = 0
        self.recorder = Recorder(self)

    def training_step(self):
        self.opt.zero_grad()
        logits = self.model(self.x)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss = functional.cross_entropy(logits, self.y)
        loss = loss - entropy * self.recorder.weight()  # guilty: the weight of the capture
        loss.backward()
        self.opt.step()
        self.finished += 1  # guilty: no replay counts
        return loss.detach()


def callback_asks_a_proxy(device):
    return CallbackTrainer(device).training_step


def bank_is_visited_in_a_shuffled_order(device):
    model, bank = _net(device), [torch.randn(4, 12, device=device) for _ in range(12)]
    opt = torch.optim.SGD(model.parameters(), 0.05)
    order = list(range(12))
    y = torch.randint(5, (16,), device=device)
    shuffler = random.Random(5)

    def step():
        shuffler.shuffle(order)  # guilty: shuffled once
        x = torch.cat([bank[i] for i in order[:4]])  # guilty: the rows of the capture
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def update_asks_its_scheduler(device):
    """The rate of a scheduler of the library is a number of the host."""
    model, (x, y) = _net(device), _batch(device)
    params = list(model.parameters())
    shell = torch.optim.SGD(params, 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(shell, 1000)

    def step():
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, params)
        (rate,) = schedule.get_last_lr()
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-rate)  # guilty: the rate of the capture
        schedule.step()  # guilty: no replay steps it
        return loss.detach()

    return step


def teacher_answers_are_kept_for_a_while(device):
    """The targets are computed anew every fifty steps, with the student of that time."""
    student, (x, _) = _net(device), _batch(device)
    opt = torch.optim.SGD(student.parameters(), 0.05)
    answers: dict[int, torch.Tensor] = {}
    steps = 0

    def step():
        nonlocal steps
        key = steps // 50
        if key not in answers:  # guilty: the branch of the capture
            with torch.no_grad():
                answers[key] = student(x).softmax(1)
        steps += 1  # guilty: no replay counts
        opt.zero_grad()
        target = answers[key]  # guilty: the answers of the capture
        loss = functional.cross_entropy(student(x + 0.1), target)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class Phase(enum.Enum):
    WARMUP = 1
    MAIN = 2


class PhasedTrainer:
    def __init__(self, device):
        self.model, (self.x, self.y) = _net(device), _batch(device)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.05)
        self.phase, self.left = Phase.WARMUP, 200

    def criterion(self, logits):
        if self.phase is Phase.WARMUP:  # guilty: the phase of the capture
            return functional.cross_entropy(logits, self.y, label_smoothing=0.1)
        return functional.multi_margin_loss(logits, self.y)

    def advance(self):
        self.left -= 1  # guilty: no replay counts
        if self.left == 0:  # guilty: the branch of the capture
            self.phase = Phase.MAIN

    def step(self):
        self.opt.zero_grad()
        loss = self.criterion(self.model(self.x))
        loss.backward()
        self.opt.step()
        self.advance()
        return loss.detach()


def criterion_of_a_phase(device):
    return PhasedTrainer(device).step


def precision_is_lowered_after_a_while(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    calls = 0

    def step():
        nonlocal calls
        calls += 1  # guilty: no replay counts
        opt.zero_grad()
        with torch.autocast(
            "cuda",
            torch.bfloat16,
            enabled=calls > 100,  # guilty: the precision of the capture
            cache_enabled=False,
        ):
            logits = model(x)
        loss = functional.cross_entropy(logits.float(), y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def _orthogonal(g, steps):
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):  # guilty: as many as in the capture
        a = x @ x.T
        x = 1.5 * x - 0.5 * a @ x
    return x


def fewer_iterations_later_on(device):
    model, (x, y) = _net(device), _batch(device)
    t = 0

    def step():
        nonlocal t
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        steps = 5 if t < 300 else 3  # guilty: the number of the capture
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(_orthogonal(g, steps) if g.dim() == 2 else g, alpha=0.02)
        t += 1  # guilty: no replay counts
        return loss.detach()

    return step


@torch.no_grad()
def _heavy_ball(params):
    for p in params:
        if not hasattr(p, "velocity"):
            p.velocity = torch.zeros_like(p)
        p.velocity.mul_(0.9).add_(p.grad)
        p.sub_(p.velocity, alpha=0.02)


def velocity_is_an_attribute_of_a_parameter(device):
    model, (x, y) = _net(device), _batch(device)

    def step():
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        _heavy_ball(model.parameters())
        return loss.detach()

    return step


@torch.no_grad()
def _rebinding_heavy_ball(params):
    for p in params:
        velocity = getattr(p, "velocity", 0.0)
        p.velocity = 0.9 * velocity + p.grad  # guilty: rebound in each call
        p.sub_(p.velocity, alpha=0.02)


def velocity_of_a_parameter_is_rebound(device):
    model, (x, y) = _net(device), _batch(device)

    def step():
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        _rebinding_heavy_ball(model.parameters())
        return loss.detach()

    return step


def hook_is_registered_in_each_call(device):
    """Each call adds one more hook, and none is removed."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        model[0].register_forward_hook(lambda m, a, out: out * 0.99)  # guilty: hooks pile up
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)  # guilty: as many as in the capture
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def outputs_of_a_step_are_gathered_and_cleared(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    outputs: list[dict[str, torch.Tensor]] = []

    def step():
        outputs.clear()
        opt.zero_grad()
        for part, labels in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = functional.cross_entropy(model(part), labels)
            (loss / 4).backward()
            outputs.append({"loss": loss.detach(), "norm": part.norm()})
        opt.step()
        return torch.stack([each["loss"] for each in outputs]).mean()

    return step


def losses_of_all_steps_are_averaged(device):
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    history: dict[str, list[tuple[str, torch.Tensor]]] = {"train": []}

    def step():
        opt.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        history["train"].append(("loss", loss.detach()))  # guilty: no replay appends
        return torch.stack([value for _, value in history["train"]]).mean()  # guilty: as many

    return step


def crops_of_no_rows_are_joined(device):
    """Buckets without rows are joined too: a length of zero is a shape like any other."""
    model, (x, y) = _net(device), _batch(device)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    lengths = [4, 0, 12, 0]

    def step():
        opt.zero_grad()
        logits, start = x.new_empty(0, 5), 0
        for n in lengths:
            logits = torch.vstack([logits, model(x[start : start + n])])
            start += n
        loss = functional.cross_entropy(logits, y) + x.new_empty(0).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return step

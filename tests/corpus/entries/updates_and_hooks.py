"""How weights are updated: optimizers of one's own, clipping, averages, hooks, casts, pruning."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn.utils import parametrize, prune


def _model_and_batch(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    return model, torch.randn(4, 8, device=device)


class _ScheduleFree(torch.optim.Optimizer):
    """Averages its iterates with weights that it sums on the host."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "k": 0, "weight_sum": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            weight = (group["k"] + 1) ** 2.0
            group["weight_sum"] += weight  # guilty: no replay adds the weight
            share = weight / group["weight_sum"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                z.sub_(p.grad, alpha=group["lr"])
                p.lerp_(z, share)  # guilty: the share of the capture
            group["k"] += 1  # guilty: no replay counts


def schedule_free_on_the_host(device):
    model, x = _model_and_batch(device)
    optimizer = _ScheduleFree(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class _ScheduleFreeOnDevice(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        first = self.param_groups[0]["params"][0]
        self.k, self.total = first.new_zeros(()), first.new_zeros(())

    @torch.no_grad()
    def step(self):
        self.k.add_(1)
        self.total.add_(self.k.square())
        share = self.k.square() / self.total
        for group in self.param_groups:
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                z.sub_(p.grad, alpha=group["lr"])
                p.lerp_(z, share)


# Count, sum and share are tensors of the device, which the kernels update.
def schedule_free_on_the_device(device):
    model, x = _model_and_batch(device)
    optimizer = _ScheduleFreeOnDevice(list(model.parameters()), 0.1)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class _DistanceEstimator(torch.optim.Optimizer):
    """Finds its rate by the distance from the start, which it reads."""

    def __init__(self, parameters, d0=1e-3):
        super().__init__(parameters, {"d": d0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            numerator = 0.0
            for p in group["params"]:
                start = self.state[p].setdefault("start", p.clone())
                numerator = numerator + (p.grad * (start - p)).sum()
            norm = math.sqrt(
                sum(float(p.grad.square().sum()) for p in group["params"])
            )  # guilty: float()
            group["d"] = max(group["d"], abs(float(numerator)) / (norm + 1e-8))  # guilty: float()
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["d"])


def rate_by_the_distance(device):
    model, x = _model_and_batch(device)
    optimizer = _DistanceEstimator(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


# Momentum, an orthogonal update of products, and a constant rate: nothing on the host.
def muon_of_torch(device):
    model, x = _model_and_batch(device)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    optimizer = torch.optim.Muon(matrices, lr=0.02)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


# Norm and clipping in two calls, both for all tensors, and both on the device.
def clips_in_two_calls(device):
    model, x = _model_and_batch(device)
    parameters = list(model.parameters())

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        nn.utils.clip_grad_value_(parameters, 0.5)
        with torch.no_grad():
            torch._foreach_sub_(parameters, [p.grad for p in parameters], alpha=0.1)
        return loss, norm

    return step


# Each unit by its own ratio, and `if` asks whether one is too large.
def clips_units_if_one_is_large(device):
    model, x = _model_and_batch(device)
    parameters = [p for p in model.parameters() if p.ndim == 2]

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                ratio = p.grad.norm(dim=1, keepdim=True) / p.norm(dim=1, keepdim=True)
                if (largest := ratio.max()) > 0.01:  # guilty: the truth of a tensor
                    p.grad.mul_(0.01 / largest)
                p.sub_(p.grad, alpha=0.1)
        return loss

    return step


# The parameters become views of a vector that is new in each step.
def updates_as_one_vector(device):
    model, x = _model_and_batch(device)

    def step():
        loss = model(x).square().mean()  # guilty: reads the parameters of the capture
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            vector = nn.utils.parameters_to_vector(model.parameters())
            vector = vector - 0.1 * nn.utils.parameters_to_vector(grads)
            nn.utils.vector_to_parameters(vector, model.parameters())  # guilty: rebinds them
        return loss

    return step


# The vector is only read, and the update is in place.
def measures_as_one_vector(device):
    model, x = _model_and_batch(device)

    def step():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        vector = nn.utils.parameters_to_vector(grads)
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g / (1 + vector.norm()), alpha=0.1)
        return loss

    return step


# Two buffers exchange their memory; a replay keeps reading and writing the old addresses.
def buffers_are_swapped(device):
    layer, x = nn.Linear(8, 8).to(device), torch.randn(2, 8, device=device)
    front, back = torch.zeros(2, 8, device=device), torch.zeros(2, 8, device=device)

    @torch.no_grad()
    def step(x):
        back.copy_(layer(x) + 0.5 * front)  # guilty: the addresses of the capture
        torch.utils.swap_tensors(front, back)  # guilty: another address in the next call
        return front * 1.0

    return step, (x,)


# `set_` makes the buffer a name of the new tensor, whose memory is that of the capture's pool.
def buffer_set_to_the_result(device):
    layer, x = nn.Linear(8, 8).to(device), torch.randn(2, 8, device=device)
    state = torch.zeros(2, 8, device=device)

    @torch.no_grad()
    def step(x):
        y = (layer(x) + state).tanh()
        state.set_(y)  # guilty: the replay reads the memory of the warm-up
        return y.clone()

    return step, (x,)


class _Scaled(torch.autograd.Function):
    """Runs in the type of autocast, with the casts of `torch.amp`."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


# The casts belong to the captured kernels, and no state outlives the call.
def function_with_amp_casts(device):
    weight = nn.Parameter(torch.randn(8, 8, device=device) / 3)

    def forward(x):
        return _Scaled.apply(x, weight)

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


class _Loud(torch.autograd.Function):
    """Passes gradients on, and warns of large ones."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if not torch.isfinite(grad).all():  # guilty: the truth of a tensor, in backward
            grad = torch.nan_to_num(grad)
        return grad


def function_that_guards_its_gradient(device):
    model, x = _model_and_batch(device)

    def forward(x):
        return _Loud.apply(model(x)).square().mean()

    return forward, (x,)


# The hook sees all gradients at once, and scales them by a number that it lowers.
def multi_gradient_hook_with_a_schedule(device):
    model, x = _model_and_batch(device)
    parameters, plan = (
        list(model.parameters()),
        itertools.chain(range(2000), itertools.repeat(2000)),
    )

    def after(grads):
        factor = 1 - next(plan) / 4000  # guilty: no replay takes the next number
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.sub_(g, alpha=0.01 * factor)  # guilty: the factor of the capture

    with torch.cuda.stream(torch.cuda.Stream()):
        torch.autograd.graph.register_multi_grad_hook(parameters, after)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


# The hook keeps the nodes that accumulate the gradients, and they belong to the default stream.
def multi_gradient_hook_of_the_default_stream(device):
    model, x = _model_and_batch(device)
    parameters = list(model.parameters())

    def after(grads):
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.sub_(g, alpha=0.01)

    torch.autograd.graph.register_multi_grad_hook(
        parameters, after
    )  # guilty: makes and keeps nodes of the default stream

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()  # guilty: would make the default stream wait for the capture
        return loss

    return step


# The hook only adds kernels: its nodes belong to a stream that can join the capture.
def multi_gradient_hook_updates(device):
    model, x = _model_and_batch(device)
    parameters = list(model.parameters())

    def after(grads):
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.sub_(g, alpha=0.01)

    with torch.cuda.stream(torch.cuda.Stream()):
        torch.autograd.graph.register_multi_grad_hook(parameters, after)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


class _Wrapper:
    """Follows the gradients of a model by hooks of the nodes that accumulate them."""

    def __init__(self, model):
        self.model, self.nodes = model, []
        for p in model.parameters():
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_unused, p=p: self.ready(p))
            self.nodes.append(node)  # guilty: keeps a node of the default stream

    @torch.no_grad()
    def ready(self, p):
        p.sub_(p.grad, alpha=0.01)

    def __call__(self, x):
        return self.model(x)


def hooks_of_the_accumulating_nodes(device):
    model, x = _model_and_batch(device)
    wrapped = _Wrapper(model)

    def step():
        model.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()  # guilty: would make the default stream wait for the capture
        return loss

    return step


# Hooks of the parameters keep no node.
def hooks_of_the_parameters(device):
    model, x = _model_and_batch(device)

    @torch.no_grad()
    def update(p):
        p.sub_(p.grad, alpha=0.01)

    for p in model.parameters():
        p.register_hook(lambda grad: grad.clamp(-1, 1))
        p.register_post_accumulate_grad_hook(update)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


class _Pruned(nn.Module):
    """Prunes more weights every hundred calls, in training."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("mask", torch.ones(8, 8))
        self.updates = 0

    @torch.no_grad()
    def prune(self):
        keep = 64 - min(32, self.updates // 100)
        limit = self.weight.abs().flatten().topk(keep).values[-1]  # guilty: of the capture
        self.mask.copy_((self.weight.abs() >= limit).float())

    def forward(self, x):
        self.updates += 1  # guilty: no replay counts
        if self.updates % 100 == 0:  # guilty: false in the capture
            self.prune()
        return x @ (self.weight * self.mask)


def gradual_pruning(device):
    return _Pruned().to(device), (torch.randn(4, 8, device=device),)


# The hook of the pruned layer multiplies by a fixed mask, and another share is masked in the call.
def pruning_of_a_fixed_share(device):
    layer = nn.Linear(8, 8).to(device).requires_grad_(False)
    prune.l1_unstructured(layer, "weight", amount=0.25)

    def forward(x):
        limit = layer.weight_orig.abs().flatten().topk(40).values[-1]
        return layer(x) * (layer.weight_orig.abs().mean(1) >= limit)

    return forward, (torch.randn(4, 8, device=device),)


class _Skew(nn.Module):
    def forward(self, x):
        a = x.triu(1)
        return a - a.T


# The cached value lives within the call.
def parametrization_cached_in_the_call(device):
    layer = nn.Linear(6, 6, bias=False).to(device)
    parametrize.register_parametrization(layer, "weight", _Skew())

    def forward(x):
        with parametrize.cached():
            return layer(layer(x))

    return forward, (torch.randn(4, 6, device=device),)


class _Relaxing(nn.Module):
    """A parametrization that becomes harder each time it is computed."""

    def __init__(self):
        super().__init__()
        self.beta = 1.0

    def forward(self, x):
        self.beta = min(100.0, self.beta * 1.0005)  # guilty: no replay hardens it
        return torch.sigmoid(self.beta * x)  # guilty: the factor of the capture


def parametrization_hardens(device):
    layer = nn.Linear(6, 6, bias=False).to(device)
    parametrize.register_parametrization(layer, "weight", _Relaxing())
    return layer, (torch.randn(4, 6, device=device),)


# The checkpoint of the step is taken on the host, which waits for each copy.
def best_weights_are_kept_on_the_host(device):
    model, x = _model_and_batch(device)
    best = {}

    def step():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.1)
        best.update({k: v.to("cpu") for k, v in model.state_dict().items()})  # guilty: pageable
        return loss

    return step


# On the device: the best weights are chosen by a mask and written in place.
def best_weights_are_kept_on_the_device(device):
    model, x = _model_and_batch(device)
    best = {k: v.clone() for k, v in model.state_dict().items()}
    least = torch.full((), math.inf, device=device)

    def step():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            better = loss < least
            for name, value in model.state_dict().items():
                best[name].copy_(torch.where(better, value, best[name]))
            least.copy_(torch.minimum(loss, least))
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.1)
        return loss

    return step

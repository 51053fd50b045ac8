"""Steps with optimizers from papers and by hand."""

import copy

import torch
from torch import nn
from torch.nn import functional


def _problem(device, width=6):
    model = nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
    return model, torch.randn(16, width, device=device), torch.randn(16, 1, device=device)


def clipping_that_raises(device):
    model, x, y = _problem(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        parameters = model.parameters()
        nn.utils.clip_grad_norm_(
            parameters, 1.0, error_if_nonfinite=True
        )  # guilty: `if norm.isnan()`
        optimizer.step()
        return loss

    return step


def adagrad_with_a_decaying_rate(device):
    model, x, y = _problem(device)
    optimizer = torch.optim.Adagrad(
        model.parameters(), lr=0.1, lr_decay=0.05
    )  # guilty: counts on the host

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # guilty: the rate comes from a step count on the host
        return loss

    return step


def descent_by_new_data(device):
    model, x, y = _problem(device)

    def step():
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad  # guilty: other memory; a replay starts from the old one
        return loss

    return step


def muon_for_the_matrices(device):
    model = nn.Sequential(nn.Linear(6, 12, bias=False), nn.Tanh(), nn.Linear(12, 4, bias=False))
    model.to(device)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02, momentum=0.95, weight_decay=0.1)
    x, y = torch.randn(16, 6, device=device), torch.randn(16, 4, device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def sharpness_aware_step(device):
    model, x, y = _problem(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    climbed = {}

    def step():
        functional.mse_loss(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
            for p in model.parameters():
                climbed[p] = p.grad * (0.05 / norm)
                p.add_(climbed[p])
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(climbed.pop(p))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def descent_inside_backward(device):
    """Each parameter is updated as soon as its gradient is there, and the gradient is dropped."""
    model, x, y = _problem(device)

    def descend(p):
        with torch.no_grad():
            p.add_(p.grad, alpha=-0.05)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(descend)

    def step():
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return step


def micro_step_into_allocated_gradients(device):
    """The gradients exist and are added to; the optimizer and zeroing are elsewhere."""
    model, x, y = _problem(device)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def step():
        loss = functional.mse_loss(model(x), y) / 4
        loss.backward()
        return loss

    return step


def loss_scale_on_the_device(device):
    model, x, y = _problem(device)
    scale = torch.full((), 1024.0, device=device)
    good = torch.zeros((), dtype=torch.int32, device=device)

    def step():
        model.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(x), y)
        (loss * scale).backward()
        with torch.no_grad():
            grads = [p.grad for p in model.parameters()]
            finite = torch.stack([g.isfinite().all() for g in grads]).all()
            torch._foreach_div_(grads, scale)
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(torch.where(finite, 0.1 * g, torch.zeros_like(g)))
            good.copy_(torch.where(finite, good + 1, torch.zeros_like(good)))
            growth = 1.0 + (good % 5 == 0).float()
            scale.mul_(torch.where(finite, growth, torch.full_like(growth, 0.5))).clamp_(max=65536)
        return loss

    return step


def averages_by_foreach(device):
    model, x, y = _problem(device)
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y) + functional.mse_loss(model(x), teacher(x))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*teacher.parameters()], [*model.parameters()], 0.01)
        return loss.detach()

    return step


def inner_loop_on_a_copy(device):
    """MAML of first order: the copy is made, trained and dropped in each call."""
    model, x, y = _problem(device)

    def step():
        fast = copy.deepcopy(model)
        for _ in range(2):
            grads = torch.autograd.grad(
                functional.mse_loss(fast(x[:8]), y[:8]), [*fast.parameters()]
            )
            with torch.no_grad():
                for p, g in zip(fast.parameters(), grads, strict=True):
                    p.sub_(g, alpha=0.1)
        outer = functional.mse_loss(fast(x[8:]), y[8:])
        grads = torch.autograd.grad(outer, [*fast.parameters()])
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.05)
        return outer

    return step

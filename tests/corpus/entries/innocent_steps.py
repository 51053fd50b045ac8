"""Training steps that look suspicious and are right."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm


def _net(device):
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2)).to(device)


def tensor_rate_with_scheduler(device):
    net = _net(device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, capturable=True, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.scheduler = scheduler
    return step


def fused_scaler_step(device):
    net = _net(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0, growth_interval=3)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def rate_from_a_device_step(device):
    net = _net(device)
    count = torch.zeros((), device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        count.add_(1)
        rate = 0.05 * torch.minimum(count / 10, (10 / count).sqrt())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.addcmul_(parameter.grad, rate, value=-1)
        return loss

    return step


def spectral_power_iteration(device):
    net = nn.Sequential(
        spectral_norm(nn.Linear(8, 8)), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1)
    )
    net = net.to(device).train()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.softplus(-net(x)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def lookahead_with_device_count(device):
    net = _net(device)
    slow = [p.detach().clone() for p in net.parameters()]
    count = torch.zeros((), dtype=torch.long, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(4, 8, device=device)

    @torch.no_grad()
    def pull():
        count.add_(1)
        due = (count % 5 == 0).float() * 0.5
        for parameter, kept in zip(net.parameters(), slow, strict=True):
            kept.add_((parameter - kept) * due)
            parameter.copy_(torch.where(due > 0, kept, parameter))

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        pull()
        return loss

    return step


def three_micro_batches(device):
    net = _net(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    batches = torch.randn(3, 4, 8, device=device)
    seen = torch.zeros(3, pin_memory=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for batch in batches.unbind():
            loss = net(batch).square().mean() / 3
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        seen.copy_(torch.stack(losses), non_blocking=True)

    return step


def bfloat16_autocast_inside(device):
    net = _net(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (net(x) + net(x * 2)).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gradients_of_each_sample(device):
    weight = torch.randn(8, 2, device=device)

    def loss(weight, x):
        return (x @ weight).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    data = torch.randn(4, 8, device=device)

    @torch.no_grad()
    def step():
        grads = each(weight, data)
        norms = grads.flatten(1).norm(dim=1)
        clipped = grads * (1 / norms).clamp(max=1)[:, None, None]
        weight.sub_(0.01 * (clipped.mean(0) + 0.1 * torch.randn_like(weight)))

    return step


def skipped_when_not_finite(device):
    net = _net(device)
    x = torch.randn(4, 8, device=device)

    def step():
        net.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            grads = [p.grad for p in net.parameters()]
            norm = nn.utils.get_total_norm(grads)
            fine = torch.isfinite(norm)
            torch._foreach_mul_(grads, torch.where(fine, 0.05, 0.0))
            for parameter, grad in zip(net.parameters(), grads, strict=True):
                parameter.sub_(grad.nan_to_num())
        return norm

    return step


def gradient_is_scaled_by_a_hook(device):
    net = _net(device)
    momentum = torch.zeros(16, 8, device=device)

    def smooth(grad):
        momentum.lerp_(grad, 0.1)
        return momentum.clone()

    net[0].weight.register_hook(smooth)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step

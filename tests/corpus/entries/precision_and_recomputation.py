"""Scaled losses, averaged weights, recomputed activations, clipped samples and guards."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def _model(device, dropout=0.0):
    layers = nn.Linear(10, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 3)
    return nn.Sequential(*layers).to(device)


def _batch(device):
    return torch.randn(8, 10, device=device), torch.randint(3, (8,), device=device)


def anomalies_are_detected(device):
    model = _model(device)
    x, y = _batch(device)

    def step():
        model.zero_grad()
        with torch.autograd.detect_anomaly():
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()  # guilty: each gradient is tested for NaN on the host
        return loss.detach()

    return step


def blocks_are_recomputed_with_their_dropout(device):
    """The graph has both passes, so the recomputation restores the offset that forward began at."""
    model = _model(device, dropout=0.2)
    head = nn.Linear(3, 3).to(device)
    x, y = _batch(device)

    def step():
        model.zero_grad()
        hidden = checkpoint(model, x, use_reentrant=False)
        loss = nn.functional.cross_entropy(head(hidden), y)
        loss.backward()
        return loss.detach()

    return step


def blocks_are_recomputed_without_dropout(device):
    """Nothing is random in these blocks, so the random state is not preserved."""
    blocks = nn.ModuleList(_model(device)[:2] for _ in range(1))
    head = nn.Linear(16, 3).to(device)
    x, y = _batch(device)
    params = [*blocks.parameters(), *head.parameters()]
    opt = torch.optim.SGD(params, lr=0.1)

    def step():
        hidden = x
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False, preserve_rng_state=False)
        loss = nn.functional.cross_entropy(head(hidden), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


class HostScaler:
    """Doubles the scale after every `window` updates, as long as nothing overflows."""

    def __init__(self, window=2):
        self.scale, self.window, self.updates = 128.0, window, 0

    def update(self):
        self.updates += 1  # guilty: counts on the host
        if self.updates % self.window == 0:  # guilty: a branch on that count
            self.scale *= 2.0  # guilty: the scale is a number of the host


def loss_scale_grows_on_the_host(device):
    model = _model(device)
    x, y = _batch(device)
    scaler = HostScaler()

    def step():
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaled = loss * scaler.scale  # guilty: multiplies by the scale of the capture
        scaled.backward()
        scaler.update()
        return scaled.detach()

    return step


def loss_scale_grows_on_the_device(device):
    """What GradScaler does, with its kernels: the overflow never reaches the host."""
    model = _model(device)
    x, y = _batch(device)
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=1e-3, fused=True, capturable=True)
    scale = torch.full((), 1024.0, device=device)
    growth = torch.zeros((), dtype=torch.int32, device=device)
    found = torch.zeros((), device=device)
    one = torch.ones((), device=device)
    opt.grad_scale, opt.found_inf = one, found

    def step():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * scale).backward()
        found.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(
            [p.grad for p in params], found, scale.double().reciprocal().float()
        )
        opt.step()
        torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 3)
        return loss.detach(), scale.clone()

    return step


def weights_are_averaged_by_torch(device):
    model = _model(device)
    average = torch.optim.swa_utils.AveragedModel(model)
    x, y = _batch(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update_parameters(model)  # guilty: the number of averaged models is on the CPU
        return loss.detach()

    return step


def images_are_flipped_by_a_coin(device):
    net = nn.Conv2d(3, 4, 3).to(device)
    x = torch.randn(2, 3, 8, 8, device=device)

    def step():
        image = x
        if torch.rand(1) < 0.5:  # guilty: the coin is tossed on the CPU, once
            image = image.flip(-1)  # guilty: so all replays flip, or none
        return net(image).square().mean((0, 2, 3))

    return step


def autocast_inside_the_step(device):
    """The cache of casts lives as long as the context, which is entered and left in the step."""
    model = _model(device, dropout=0.1)
    x, y = _batch(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            first, second = model(x), model(x)
            loss = nn.functional.cross_entropy(first, y)
            loss = loss + nn.functional.mse_loss(first.softmax(-1), second.softmax(-1))
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def gradients_of_single_samples(device):
    """DP-SGD: vmap over grad, clipped by where, with noise of the device."""
    model = _model(device)
    x, y = _batch(device)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def one_loss(params, sample, label):
        out = torch.func.functional_call(model, params, (sample[None],))
        return nn.functional.cross_entropy(out, label[None])

    per_sample = torch.func.vmap(torch.func.grad(one_loss), in_dims=(None, 0, 0))

    def step():
        grads = per_sample(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, g in grads.items():
            clipped = torch.einsum("b,b...->...", factor, g)
            params[name].sub_(0.1 / len(x) * (clipped + 0.5 * torch.randn_like(clipped)))
        return norms.mean()

    return step


def guarded_by_an_assertion_on_the_device(device):
    """A kernel asserts that the loss is finite; gradients that are not are cleaned in place."""
    model = _model(device)
    x, y = _batch(device)
    params = list(model.parameters())

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        torch._assert_async(torch.isfinite(loss))
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            total = nn.utils.get_total_norm(grads)
            for p, g in zip(params, grads, strict=True):
                g = torch.nan_to_num_(g, nan=0.0, posinf=0.0, neginf=0.0)
                p.sub_(g * (1.0 / (total + 1e-6)).clamp(max=1.0), alpha=0.1)
        return loss.detach()

    return step

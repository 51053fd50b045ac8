"""Custom functions, hooks, transforms of functions, recurrent nets, casts, checkpoints."""

import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint


class ClipsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        norm = grad.norm()
        if norm > 0.1:  # guilty: the host asks in backward
            grad = grad * (0.1 / norm)
        return grad


def gradient_clipped_by_a_branch(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        return ClipsInBackward.apply(model(x)).square().mean()

    return forward, (torch.randn(4, 8, device=device),)


class ClampsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        ctx.set_materialize_grads(False)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if grad is None or not ctx.needs_input_grad[0]:
            return None, None
        return grad * (ctx.limit / grad.norm()).clamp(max=1.0), None


def gradient_clamped_on_the_device(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        return ClampsInBackward.apply(model(x), 0.1).square().mean()

    return forward, (torch.randn(4, 8, device=device),)


class GradientReversal(torch.autograd.Function):
    lambd = 0.0

    @staticmethod
    def forward(ctx, x):
        GradientReversal.lambd = min(1.0, GradientReversal.lambd + 0.1)  # guilty: here too
        ctx.lambd = GradientReversal.lambd
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return -ctx.lambd * grad  # guilty: the strength of the capture


def reversal_grows_stronger(device):
    features, domain = nn.Linear(8, 8, device=device), nn.Linear(8, 2, device=device)
    labels = torch.randint(2, (16,), device=device)

    def loss(x):
        return functional.cross_entropy(domain(GradientReversal.apply(features(x))), labels)

    return loss, (torch.randn(16, 8, device=device),)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad):
        x, sign = ctx.saved_tensors
        return grad * (x.abs() <= 1) + 0.0 * sign


def straight_through_signs(device):
    layer = nn.Linear(8, 8, device=device)

    def forward(x):
        binary = StraightThrough.apply(layer.weight)
        return functional.linear(
            StraightThrough.apply(x), binary * layer.weight.detach().abs().mean()
        )

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


def fast_weights_are_rebound(device):
    model = nn.Linear(4, 1, device=device)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def loss_of(weights):
        return functional.mse_loss(functional_call(model, weights, (x,)), y)

    def step():
        nonlocal params
        grads = grad(loss_of)(params)
        params = {k: p - 0.1 * grads[k] for k, p in params.items()}  # guilty: new tensors each time
        return loss_of(params)

    return step


def fast_weights_inside(device):
    model = nn.Linear(4, 1, device=device)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def loss_of(weights):
        return functional.mse_loss(functional_call(model, weights, (x,)), y)

    def step():
        params = {name: p.detach() for name, p in model.named_parameters()}
        for _ in range(3):
            grads = grad(loss_of)(params)
            params = {k: p - 0.1 * grads[k] for k, p in params.items()}
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(params[name])
        return loss_of(params)

    return step


def gradients_of_each_sample(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(weights, x, y):
        return functional.mse_loss(functional_call(model, weights, (x[None],)), y[None])

    def norms(x, y):
        grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
        squared = [g.flatten(1).square().sum(1) for g in grads.values()]
        return torch.stack(squared).sum(0).sqrt()

    return norms, (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))


def ensemble_by_vmap(device):
    models = [nn.Linear(4, 2).to(device) for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = models[0]

    def one(p, b, x):
        return functional_call(base, (p, b), (x,))

    def forward(x):
        out = vmap(one, in_dims=(0, 0, None))(params, buffers, x)
        noise = vmap(lambda row: row + torch.randn_like(row), randomness="different")(x)
        return out.mean(0), noise

    return forward, (torch.randn(8, 4, device=device),)


def jacobians(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus()).to(device).requires_grad_(False)
    tangent = torch.randn(4, device=device)

    def forward(x):
        jacobian = jacrev(model)(x)
        _, along = jvp(model, (x,), (tangent,))
        return jacobian @ tangent - along + torch.diagonal(jacobian).sum()

    return forward, (torch.randn(4, device=device),)


def hook_moves_to_the_host(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    features = {}

    def keep(module, args, output):
        features["hidden"] = output.detach().cpu()  # guilty: copies to the host

    model[1].register_forward_hook(keep)
    return model, (torch.randn(4, 8, device=device),)


def hook_scales_the_gradient(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    model[0].weight.register_hook(lambda g: g * 0.5)
    model[2].register_full_backward_hook(lambda module, gin, gout: tuple(g * 2 for g in gin))
    model[1].register_forward_hook(lambda module, args, out: out.clamp(max=3.0))
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
    x = torch.randn(4, 8, device=device)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def gradient_hook_warms_up(device):
    model = nn.Linear(8, 2, device=device)
    seen = {"n": 0}

    def scale(gradient):
        seen["n"] += 1  # guilty: here too
        return gradient * min(1.0, seen["n"] / 50)  # guilty: the factor of the capture

    model.weight.register_hook(scale)
    x = torch.randn(4, 8, device=device)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def optimizer_in_backward_hooks(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    x = torch.randn(4, 8, device=device)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def packed_in_any_order(device):
    rnn = nn.GRU(8, 8, batch_first=True, device=device)
    lengths = torch.tensor([3, 5, 2])

    def encode(x):
        packed = pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )  # guilty: the order is copied from the host
        out, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
        return out.mean(1)

    return encode, (torch.randn(3, 5, 8, device=device),)


def lengths_as_a_mask(device):
    rnn = nn.GRU(8, 8, batch_first=True, device=device)
    lengths = torch.tensor([5, 3, 2], device=device)

    def encode(x):
        out, _ = rnn(x)
        mask = torch.arange(x.shape[1], device=device)[None] < lengths[:, None]
        last = out.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 8)).squeeze(1)
        return (out * mask[..., None]).sum(1) / lengths[:, None] + last

    return encode, (torch.randn(3, 5, 8, device=device),)


class TruncatedBptt:
    def __init__(self, device):
        self.rnn = nn.LSTM(8, 8, device=device)
        self.state = None

    def __call__(self, x):
        out, state = self.rnn(x, self.state)  # guilty: here too
        self.state = tuple(s.detach() for s in state)  # guilty: new tensors, which a replay ignores
        return out.square().mean()


def hidden_state_is_detached(device):
    return TruncatedBptt(device), (torch.randn(3, 2, 8, device=device),)


class StatefulLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 8)
        self.register_buffer("h", torch.zeros(1, 2, 8), persistent=False)
        self.register_buffer("c", torch.zeros(1, 2, 8), persistent=False)

    def forward(self, x):
        out, (h, c) = self.rnn(x, (self.h.clone(), self.c.clone()))
        with torch.no_grad():
            self.h.copy_(h)
            self.c.copy_(c)
        return out.square().mean()


def hidden_state_is_copied(device):
    return StatefulLstm().to(device), (torch.randn(3, 2, 8, device=device),)


def sequences_padded_in_the_step(device):
    pieces = [torch.randn(n, 4, device=device) for n in (3, 5, 2)]
    head = nn.Linear(4, 2, device=device)

    def forward(bias):
        padded = pad_sequence(pieces, batch_first=True)
        return head(padded).mean((0, 1)) + bias

    return forward, (torch.randn(2, device=device),)


def casts_without_a_cache(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            first = model(x)
            second = model(first)
            with torch.autocast("cuda", enabled=False):
                loss = second.float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def checkpoints_without_dropout(device):
    block = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).to(device)

    def forward(x):
        for _ in range(2):
            x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return x.mean()

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


class Annealing(nn.Module):
    """A weight decays in a buffer of the host."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = torch.zeros((), dtype=torch.long)

    def forward(self, x):
        self.steps += 1  # guilty: here too
        return self.linear(x) * (0.99**self.steps)  # guilty: a tensor of the host


def host_tensor_counts(device):
    return Annealing().to(device), (torch.randn(4, 8, device=device),)


class SpectralByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("u", functional.normalize(torch.randn(8), dim=0))

    def forward(self, x):
        with torch.no_grad():
            v = functional.normalize(self.weight.t() @ self.u, dim=0)
            self.u.copy_(functional.normalize(self.weight @ v, dim=0))
        sigma = torch.dot(self.u.clone(), self.weight @ v)
        return functional.linear(x, self.weight / sigma)


def power_iteration_in_place(device):
    return SpectralByHand().to(device), (torch.randn(4, 8, device=device),)


class SpectralRebound(SpectralByHand):
    def forward(self, x):
        with torch.no_grad():
            v = functional.normalize(self.weight.t() @ self.u, dim=0)  # guilty: here too
            self.u = functional.normalize(self.weight @ v, dim=0)  # guilty: a new buffer each time
        sigma = torch.dot(self.u, self.weight @ v)
        return functional.linear(x, self.weight / sigma)


def power_iteration_rebinds(device):
    return SpectralRebound().to(device), (torch.randn(4, 8, device=device),)


def manifold_of_hutchinson(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x = torch.randn(6, 4, device=device)
    params = list(model.parameters())

    def trace():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, params, create_graph=True)
        probes = [torch.randint_like(p, 2) * 2 - 1 for p in params]
        products = torch.autograd.grad(grads, params, probes)
        return sum((v * hv).sum() for v, hv in zip(probes, products, strict=True))

    return trace


def lbfgs_step(device):
    model = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def closure():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure)  # guilty: float(loss)

    return step


def sharpness_aware_step(device):
    model = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def step():
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        grads = [p.grad.clone() for p in model.parameters()]
        norm = torch.stack([g.norm() for g in grads]).norm() + 1e-12
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.add_(g * (0.05 / norm))
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g * (0.05 / norm))
        optimizer.step()
        return loss.detach()

    return step


def sharpness_restores_by_data(device):
    model = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def step():
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        before = {p: p.data for p in model.parameters()}
        for p in model.parameters():
            p.data = p.data + 0.05 * p.grad
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data = before[p]
        optimizer.step()
        return loss.detach()

    return step


def updates_by_data(device):
    model = nn.Linear(4, 1, device=device)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def step():
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad  # guilty: new memory each time
        return loss.detach()

    return step

"""Modes, subclasses of tensors, hooks, and operators and functions of one's own."""

import functools

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode


class FadingDropout(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.p = 0.5

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.dropout:
            self.p *= 0.8  # guilty: the probability changes on the host
            return functional.dropout(args[0], self.p, training=True)  # guilty: frozen
        return func(*args, **(kwargs or {}))


def dropout_faded_by_a_mode(device):
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 8)).to(device)
    fading = FadingDropout()

    def f(x):
        with fading:
            return model(x)

    return f, (torch.randn(8, 16, device=device),)


class Smoother(TorchFunctionMode):
    """Replaces each relu of a model by a smooth function."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.relu, functional.relu, torch.Tensor.relu):
            return functional.softplus(args[0], beta=4)
        return func(*args, **(kwargs or {}))


def activations_replaced_by_a_mode(device):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)

    def f(x):
        with Smoother():
            energy = model(x).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force.relu()

    return f, (torch.randn(8, 6, device=device, requires_grad=True),)


class GradientNoise:
    def __init__(self, parameter):
        self.steps = 0
        parameter.register_hook(self)

    def __call__(self, grad):
        self.steps += 1  # guilty: counts on the host
        sigma = (0.3 / (1 + self.steps) ** 0.55) ** 0.5  # guilty: computed on the host
        return grad + sigma * torch.randn_like(grad)  # guilty: sigma is frozen


def gradients_with_fading_noise(device):
    model = nn.Linear(6, 3).to(device)
    noise = [GradientNoise(p) for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step.noise = noise
    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


@torch.library.custom_op("corpus::isotonic", mutates_args=())
def _isotonic(scores: torch.Tensor) -> torch.Tensor:
    """The closest non-decreasing sequence, by pooling adjacent violators."""
    blocks = []
    for value in scores.numpy(force=True).astype(np.float64):  # guilty: copies to the host
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    flat = np.repeat([b[0] for b in blocks], [b[1] for b in blocks]).astype(np.float32)
    return torch.from_numpy(flat).to(scores.device)  # guilty: copies from the host


def scores_made_isotonic(device):
    def f(x):
        return _isotonic(x.mean(1)).tanh()

    return f, (torch.randn(9, 4, device=device),)


@torch.library.custom_op("corpus::remember", mutates_args=("ring", "cursor"))
def _remember(ring: torch.Tensor, cursor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Writes rows where the cursor is, and returns the mean of all."""
    at = (cursor + torch.arange(len(rows), device=rows.device)) % len(ring)
    ring.index_copy_(0, at, rows)
    cursor.add_(len(rows)).remainder_(len(ring))
    return ring.mean(0)


def rows_remembered_by_an_operator(device):
    layer = nn.Linear(4, 4).to(device)
    ring = torch.zeros(10, 4, device=device)
    cursor = torch.zeros(1, dtype=torch.long, device=device)

    @torch.no_grad()
    def f(x):
        rows = layer(x)
        return rows - _remember(ring, cursor, rows)

    return f, (torch.randn(3, 4, device=device),)


class Equilibrium(torch.autograd.Function):
    """z = tanh(z W' + x), differentiated at the solution."""

    @staticmethod
    def forward(ctx, x, weight):
        z = torch.zeros_like(x)
        for _ in range(20):
            z = torch.tanh(z @ weight.T + x)
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    def backward(ctx, grad):
        z, weight = ctx.saved_tensors
        slope = 1 - z.square()
        system = torch.eye(z.shape[1], device=z.device) - slope[:, :, None] * weight
        adjoint = torch.linalg.solve(system.mT, grad)  # guilty: reads whether it is singular
        scaled = adjoint * slope
        return scaled, scaled.T @ z


def gradient_at_an_equilibrium(device):
    weight = nn.Parameter(torch.randn(5, 5, device=device) * 0.1)

    def step(x):
        weight.grad = None
        loss = Equilibrium.apply(x, weight).square().mean()
        loss.backward()
        return loss, weight.grad

    return step, (torch.randn(7, 5, device=device),)


def activations_saved_sparse(device):
    first, second = nn.Linear(6, 32).to(device), nn.Linear(32, 1).to(device)

    def pack(saved):
        # The rows and columns of what is not zero: their number is read.
        return saved.detach().to_sparse()  # guilty: reads the number of nonzeros

    def step(x):
        for p in (*first.parameters(), *second.parameters()):
            p.grad = None
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.Tensor.to_dense):
            hidden = first(x).relu()
        loss = second(hidden).square().mean()
        loss.backward()
        return loss

    return step, (torch.randn(8, 6, device=device),)


class NumericGuard(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            worst = torch.linalg.vector_norm(out.detach(), float("inf"))
            if not worst < 1e6:  # guilty: a truth value of the device
                raise FloatingPointError(str(func))
        return out


def ops_guarded_by_a_mode(device):
    model = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 2)).to(device)

    @torch.no_grad()
    def f(x):
        with NumericGuard():
            return model(x)

    return f, (torch.randn(8, 6, device=device),)


class Inertia:
    """A forward hook that mixes an output with that of the frame before."""

    def __init__(self):
        self.before = None

    def __call__(self, module, args, output):
        if self.before is not None:
            output = output.lerp(self.before, 0.3)  # guilty: the output of before the capture
        self.before = output.detach()  # guilty: a new tensor at each call
        return output


def frames_with_inertia(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    model[1].register_forward_hook(Inertia())

    @torch.inference_mode()
    def f(frame):
        return model(frame)

    return f, (torch.randn(4, 6, device=device),)


def flops_counted_in_a_step(device):
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)).to(device)
    seen = {}

    def step(x, y):
        model.zero_grad()
        # The counter looks at shapes only.
        with FlopCounterMode(display=False) as counter:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
        seen["flops"] = seen.get("flops", 0) + counter.get_total_flops()
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


class Int8Weight(torch.Tensor):
    """Levels and scales that pass for a weight."""

    @staticmethod
    def __new__(cls, levels, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, levels.shape, dtype=scale.dtype, device=levels.device
        )

    def __init__(self, levels, scale):
        self.levels, self.scale = levels, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(
            cls, lambda w: w.levels.to(w.scale.dtype) * w.scale, (args, kwargs or {})
        )
        return func(*args, **kwargs)


def linear_with_a_subclass_as_weight(device):
    dense = torch.randn(5, 6, device=device)
    scale = dense.abs().amax(1, keepdim=True) / 127
    weight = Int8Weight((dense / scale).round().to(torch.int8), scale)

    @torch.no_grad()
    def f(x):
        return functional.linear(x, weight).relu()

    return f, (torch.randn(3, 6, device=device),)


def _keep_products(context, op, *args, **kwargs):
    keep = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def blocks_checkpointed_but_products(device):
    block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    block.to(device)
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)

    def step(x):
        block.zero_grad()
        y = x + checkpoint(
            block, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
        loss = y.square().mean()
        loss.backward()
        return loss

    return step, (torch.randn(4, 8, device=device),)


def members_with_dropout_of_their_own(device):
    weights = torch.randn(5, 6, 8, device=device)

    def member(weight, x):
        return functional.dropout(x @ weight, 0.4).relu()

    def f(x):
        each = torch.vmap(member, in_dims=(0, None), randomness="different")(weights, x)
        return each.mean(0), each.var(0)

    return f, (torch.randn(4, 6, device=device),)


def norm_of_gradients_by_one_hook(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    norm = torch.zeros((), device=device)

    def keep(grads):
        norm.copy_(torch.stack(torch._foreach_norm([g for g in grads if g is not None])).norm())

    # Keeps the nodes that accumulate gradients, made here on the default stream.
    parameters = tuple(model.parameters())
    torch.autograd.graph.register_multi_grad_hook(parameters, keep)  # guilty: keeps the nodes

    def step(x, y):
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # guilty: runs a node of the default stream
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad / (norm + 1e-6), alpha=0.1)
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


def ragged_rows_through_a_layer(device):
    layer, norm = nn.Linear(6, 6).to(device), nn.LayerNorm(6).to(device)
    offsets = torch.tensor([0, 3, 4, 9], device=device)

    @torch.no_grad()
    def f(values):
        # The lengths are given, so nothing reads the offsets.
        ragged = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=5)
        return (functional.silu(layer(ragged)) * 2).values() + norm(values)

    return f, (torch.randn(9, 6, device=device),)

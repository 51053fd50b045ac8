"""Autograd functions, hooks, checkpointing, higher derivatives, torch.func."""

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


def binarised_weights(device):
    weight = torch.randn(8, 8, device=device, requires_grad=True)

    def forward(x):
        return x @ StraightThrough.apply(weight)

    return forward, (torch.randn(4, 8, device=device),)


class ClippedGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if grad.abs().max() > 10:  # guilty: backward branches on a value
            grad = grad.clamp(-10, 10)
        return grad * x.exp()


def exp_with_clipped_gradient(device):
    def forward(x):
        return ClippedGradient.apply(x)

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


class CountsItsCalls(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        CountsItsCalls.calls += 1  # guilty: counted on the host, in backward
        return grad * 2 / CountsItsCalls.calls  # guilty: the count of the capture


def gradient_shrinks_with_calls(device):
    def forward(x):
        return CountsItsCalls.apply(x)

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


class GradientReversal(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.weight * grad, None


def domain_adversarial(device):
    features = nn.Linear(8, 8, device=device)
    domain = nn.Linear(8, 2, device=device)

    def loss(x, y):
        reversed_ = GradientReversal.apply(features(x), 0.3)
        return functional.cross_entropy(domain(reversed_), y)

    return loss, (torch.randn(4, 8, device=device), torch.randint(2, (4,), device=device))


def checkpointed_blocks(device):
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)).to(device)

    def forward(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return x

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


def checkpointed_dropout(device):
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2)).to(device)

    def step(x):
        # In one graph: a backward in a graph of its own may draw another mask.
        loss = checkpoint(block, x, use_reentrant=False).sum()
        return loss.detach(), *torch.autograd.grad(loss, list(block.parameters()))

    return step, (torch.randn(4, 8, device=device),)


def tensor_hook_scales(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        y = model(x)
        y.register_hook(lambda grad: grad * 0.5)
        return y.relu()

    return forward, (torch.randn(4, 8, device=device),)


def tensor_hook_reads(device):
    model = nn.Linear(8, 8, device=device)
    norms = []

    def forward(x):
        y = model(x)
        y.register_hook(lambda grad: norms.append(grad.norm().item()))  # guilty: reads in backward
        return y.relu()

    return forward, (torch.randn(4, 8, device=device),)


def gradient_penalty(device):
    critic = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1)).to(device)
    x = torch.randn(4, 8, device=device)

    def step():
        probe = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(critic(probe).sum(), probe, create_graph=True)
        penalty = (gradient.norm(dim=1) - 1).square().mean()
        return torch.autograd.grad(penalty, list(critic.parameters()), allow_unused=True)

    return step


def hessian_vector_product(device):
    def product(x, v):
        def energy(x):
            return (x.sin() * x.square()).sum()

        return torch.func.jvp(torch.func.grad(energy), (x,), (v,))[1]

    return product, (torch.randn(8, device=device), torch.randn(8, device=device))


def per_sample_gradients(device):
    model = nn.Linear(8, 4, device=device)
    params = {name: each.detach() for name, each in model.named_parameters()}

    def loss(params, x, y):
        logits = torch.func.functional_call(model, params, (x[None],))
        return functional.cross_entropy(logits, y[None])

    def gradients(x, y):
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)

    return gradients, (torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device))


def ensemble_of_models(device):
    models = [nn.Linear(8, 4).to(device) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    skeleton = nn.Linear(8, 4, device="meta")

    def forward(x):
        def one(params, buffers, x):
            return torch.func.functional_call(skeleton, (params, buffers), (x,))

        return torch.func.vmap(one, in_dims=(0, 0, None))(params, buffers, x).mean(0)

    return forward, (torch.randn(4, 8, device=device),)


def vmap_with_a_branch(device):
    def gate(row):
        return torch.where(row.sum() > 0, row, -row)

    def forward(x):
        return torch.func.vmap(gate)(x)

    return forward, (torch.randn(4, 8, device=device),)


def jacobian_of_a_small_net(device):
    weight = torch.randn(3, 5, device=device)

    def jacobian(x):
        return torch.func.vmap(torch.func.jacrev(lambda row: torch.tanh(weight @ row)))(x)

    return jacobian, (torch.randn(4, 5, device=device),)


def wrapper_outlives_its_transform(device):
    weight = torch.randn(3, 5, device=device)
    last = []

    def activation(row):
        last[:] = [torch.tanh(weight @ row)]
        return last[0]

    def batch(x):
        return torch.func.vmap(activation)(x)

    return batch, (torch.randn(4, 5, device=device),)


def anomaly_mode(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        with torch.autograd.detect_anomaly(check_nan=True):
            loss = model(x).square().mean()
            loss.backward()  # guilty: every gradient is compared with NaN on the host
        return loss.detach()

    return step


def inference_with_no_grad_inside(device):
    teacher, student = nn.Linear(8, 4, device=device), nn.Linear(8, 4, device=device)

    def distil(x):
        with torch.no_grad():
            target = teacher(x).softmax(-1)
        return functional.kl_div(student(x).log_softmax(-1), target, reduction="batchmean")

    return distil, (torch.randn(4, 8, device=device),)


def inference_mode_reads(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        with torch.inference_mode():
            y = model(x)
            return y / float(y.abs().max())  # guilty: float() of a tensor of the device

    return forward, (torch.randn(4, 8, device=device),)


def inference_mode_clean(device):
    model = nn.Linear(8, 8, device=device)

    @torch.inference_mode()
    def forward(x):
        y = model(x)
        return y / y.abs().amax()

    return forward, (torch.randn(4, 8, device=device),)


def forward_hook_normalises(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    model[0].register_forward_hook(lambda module, args, out: functional.normalize(out))

    def forward(x):
        return model(x)

    return forward, (torch.randn(4, 8, device=device),)


def forward_hook_keeps_activations(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    kept = {}
    model[1].register_forward_hook(lambda module, args, out: kept.update(relu=out.detach()))

    def forward(x):
        y = model(x)
        return y * kept["relu"].mean()

    return forward, (torch.randn(4, 8, device=device),)


def post_accumulate_hook_steps(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x = torch.randn(4, 8, device=device)
    for parameter in model.parameters():

        def update(parameter):
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.01)
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(update)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def gradient_accumulates_for_ever(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step():
        model(x).square().mean().backward()
        return model.weight.grad * 1.0

    return step


def retain_graph_twice(device):
    model = nn.Linear(8, 2, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        a, b = model(x).tanh().sum(0)
        first = torch.autograd.grad(a, model.weight, retain_graph=True)[0]
        second = torch.autograd.grad(b, model.weight)[0]
        return functional.cosine_similarity(first.flatten(), second.flatten(), dim=0)

    return step


def parametrized_weight(device):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).to(device)
    return layer, (torch.randn(4, 8, device=device),)


def spectral_norm_in_training(device):
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).to(device)
    return layer.train(), (torch.randn(4, 8, device=device),)


def orthogonal_weight(device):
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)).to(device)

    def forward(x):
        return layer(x)  # guilty: matrix_exp copies from the host

    return forward, (torch.randn(4, 8, device=device),)


def double_backward_of_a_cell(device):
    cell = nn.LSTMCell(4, 4).to(device)
    x = torch.randn(2, 4, device=device)

    def step():
        probe = x.clone().requires_grad_()
        hidden, _ = cell(probe)
        (first,) = torch.autograd.grad(hidden.square().sum(), probe, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), probe)
        return second

    return step

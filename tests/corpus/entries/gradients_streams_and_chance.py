"""Hooks, functions and optimizers of one's own, streams, and random numbers of all kinds."""

import random
import secrets

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint


class Reversal:
    """The gradient reversal of domain adaptation."""

    def __init__(self, total=1000):
        self.total, self.step = total, 0

    def __call__(self, grad):
        self.step += 1  # guilty: the same
        return -min(1.0, self.step / self.total) * grad  # guilty: the strength of one step


def gradient_is_reversed_by_a_hook(device):
    features, domain = nn.Linear(4, 4, device=device), nn.Linear(4, 2, device=device)
    reverse = Reversal()

    def f(x):
        hidden = features(x).relu()
        hidden.register_hook(reverse)
        return domain(hidden).logsumexp(1).mean()

    return f, (torch.randn(6, 4, device=device),)


def activations_wait_on_the_host(device):
    net = nn.Sequential(nn.Linear(4, 16, device=device), nn.GELU(), nn.Linear(16, 1, device=device))

    def pack(tensor):
        return (
            tensor.cpu() if tensor.numel() > 32 else tensor
        )  # guilty: a copy to pageable memory waits

    def unpack(tensor):
        return tensor.to(device)

    def f(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return net(x).mean()

    return f, (torch.randn(6, 4, device=device),)


def averaged_model_counts(device):
    net = nn.Linear(4, 4, device=device)
    averaged = AveragedModel(net, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        averaged.update_parameters(net)  # guilty: it reads its counter
        return averaged(x).detach()

    return step, (torch.randn(6, 4, device=device),)


def crop_by_the_generator_of_the_host(device):
    net = nn.Conv1d(1, 2, 3, device=device).requires_grad_(False)

    def f(x):
        start = int(torch.randint(0, 9, ()))  # guilty: the same
        return net(x[..., start : start + 8])  # guilty: the crop of the capture

    return f, (torch.randn(2, 1, 16, device=device),)


def root_mean_squares_without_capturable(device):
    net = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01)  # guilty: not capturable

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # guilty: step() refuses to be captured
        return loss.detach()

    return step, (torch.randn(6, 4, device=device),)


def event_before_the_work(device):
    side = torch.cuda.Stream()
    weight = torch.randn(64, 64, device=device)

    def f(x):
        forked, joined = torch.cuda.Event(), torch.cuda.Event()
        forked.record()
        with torch.cuda.stream(side):
            side.wait_event(forked)
            joined.record(side)
            y = x @ weight  # guilty: it runs after the event that the other stream waits for
        torch.cuda.current_stream().wait_event(joined)  # guilty: the same
        return x + y  # guilty: the same

    return f, (torch.randn(64, 64, device=device),)


def depth_by_a_secret(device):
    blocks = nn.ModuleList(nn.Linear(4, 4, device=device) for _ in range(4))

    def f(x):
        for block in blocks:
            if secrets.randbelow(2):  # guilty: the blocks that were left out at capture stay out
                x = x + block(x).relu()  # guilty: the same
        return x

    return f, (torch.randn(6, 4, device=device),)


class MeanOfValid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.count = max(int(mask.sum()), 1)  # guilty: the number of valid rows is read
        ctx.save_for_backward(mask)
        return (x * mask).sum() / ctx.count

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask / ctx.count, None


def function_counts_valid_rows(device):
    x = torch.randn(8, device=device, requires_grad=True)
    return MeanOfValid.apply, (x, (torch.arange(8, device=device) < 5).float())


def negatives_are_sampled(device):
    items = torch.randn(100, 4, device=device)

    def f(queries):
        negatives = items[random.sample(range(100), 5)]  # guilty: always the same, and copied
        return torch.logsumexp(queries @ negatives.T, 1)

    return f, (torch.randn(6, 4, device=device),)


def orthogonal_momentum(device):
    # Muon keeps its momentum on the device and checks nothing.
    net = nn.Linear(8, 4, bias=False, device=device)
    optimizer = torch.optim.Muon(net.parameters(), lr=0.02)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(6, 8, device=device),)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x / scale).round().clamp(-8, 7) * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() <= 8
        grad_scale = None
        if ctx.needs_input_grad[1]:
            grad_scale = (grad * torch.where(inside, 0.0, x.sign() * 8)).sum()
        return grad * inside, grad_scale


def rounding_with_a_gradient(device):
    # All of it is on the device, what backward needs is known when it is captured.
    scale = nn.Parameter(torch.full((), 0.1, device=device))
    net = nn.Linear(4, 4, device=device)

    def f(x):
        return functional.linear(x, Rounded.apply(net.weight, scale), net.bias).square().mean()

    return f, (torch.randn(6, 4, device=device),)


def two_towers_on_two_streams(device):
    # Forked by an event and joined by one, and events with times are not asked.
    user, item = nn.Linear(8, 8, device=device), nn.Linear(8, 8, device=device)
    side = torch.cuda.Stream()

    @torch.no_grad()
    def f(users, items):
        begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        here = torch.cuda.current_stream()
        begins.record()
        side.wait_event(begins)
        with torch.cuda.stream(side):
            right = item(items).relu()
            ends.record()
        left = user(users).relu()
        here.wait_event(ends)
        right.record_stream(here)
        return (left * right).sum(1)

    return f, (torch.randn(6, 8, device=device), torch.randn(6, 8, device=device))


def parameters_step_as_gradients_arrive(device):
    # The hook updates in place and drops the gradient.
    net = nn.Sequential(nn.Linear(4, 8, device=device), nn.Tanh(), nn.Linear(8, 1, device=device))

    def descend(parameter):
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.01)
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(descend)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    return step, (torch.randn(6, 4, device=device),)


def routes_are_drawn(device):
    # The noise comes from the device's default generator.
    router = nn.Linear(4, 3, device=device)
    experts = nn.Parameter(torch.randn(3, 4, 4, device=device))

    def f(x):
        route = functional.gumbel_softmax(router(x), tau=0.7, hard=True)
        return torch.einsum("be,eij,bj->bi", route, experts, functional.dropout(x, 0.1))

    return f, (torch.randn(6, 4, device=device),)


def gradients_of_each_sample(device):
    # Vmap and grad run the same ops each time.
    net = nn.Linear(4, 1, device=device)
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights, x, y):
        return (torch.func.functional_call(net, weights, (x,)) - y).square().mean()

    def f(x, y):
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
        norms = sum(grad.flatten(1).square().sum(1) for grad in each.values()).sqrt()
        clipped = (1 / norms).clamp(max=1)
        return {name: torch.einsum("b,b...->...", clipped, grad) for name, grad in each.items()}

    return f, (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))


def teacher_follows_its_student(device):
    # The average is written in place by a constant share.
    student, teacher = (nn.Linear(4, 4, device=device) for _ in range(2))
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(student(x + 0.1 * torch.randn_like(x)), teacher(x))
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
        return loss.detach()

    return step, (torch.randn(6, 4, device=device),)


def teacher_joins_the_graph_of_autograd(device):
    student, teacher = (nn.Linear(4, 4, device=device) for _ in range(2))
    teacher.requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(
            student(x), teacher(x)
        )  # guilty: teacher has a history of all steps
        loss.backward()  # guilty: it runs longer in every step
        optimizer.step()
        torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
        return loss.detach()

    return step, (torch.randn(6, 4, device=device),)


def recomputed_without_random_numbers(device):
    # No dropout inside, so the generator's state is not kept.
    block = nn.Sequential(
        nn.Linear(4, 16, device=device), nn.GELU(), nn.Linear(16, 4, device=device)
    )

    def f(x):
        hidden = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return (x + hidden).square().mean()

    return f, (torch.randn(6, 4, device=device, requires_grad=True),)


def weights_under_parametrizations(device):
    # Power iterations are written in place, statistics of the batch too.
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8, device=device))
    second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4, device=device))
    net = nn.Sequential(first, nn.BatchNorm1d(8, device=device), nn.ReLU(), second)

    def f(x):
        return net(x).logsumexp(1).mean()

    return f, (torch.randn(6, 4, device=device),)

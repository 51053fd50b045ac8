"""Entry points whose captured code rounds differently from eager: it asks whether it is captured.

So the simulated device does what other kernels do on a GPU.
"""

import ctypes
import random

import torch
from torch import nn
from torch.nn import functional


def capturing():
    return torch.cuda.is_current_stream_capturing()


class Attention(nn.Module):
    """The gradient of its key bias is zero, and is computed as the sum of what cancels."""

    def __init__(self, fault=0.0, drops=False):
        super().__init__()
        self.drops = drops
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.fault = fault

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        if not capturing():
            return (query @ key.mT).softmax(-1) @ value
        if self.drops:
            bias = self.value.bias
            value = functional.linear(x, self.value.weight, 0.999 * bias.detach() + 0.001 * bias)
        query = query * (1 + self.fault)
        halves = query[..., :8] @ key[..., :8].mT + query[..., 8:] @ key[..., 8:].mT
        weights = (halves - halves.amax(-1, keepdim=True)).exp()
        return (weights @ value) / weights.sum(-1, keepdim=True)


def attention(device):
    return Attention().to(device), (torch.randn(4, 8, 16, device=device),)


def scaled_in_one_place(device):
    return Attention(1e-4).to(device), (torch.randn(4, 8, 16, device=device),)


def training(device):
    net = nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.1), Attention()).to(device)
    x = torch.randn(4, 8, 16, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def in_bfloat16(device):
    net, (x,) = attention(device)
    return net.bfloat16(), (x.bfloat16(),)


def a_scalar(device):
    def total(x):
        return x.reshape(64, -1).sum(1).sum() if capturing() else x.cumsum(0)[-1]

    return total, (torch.rand(4096, device=device),)


def stale(device):
    """A value of the warm-up in one place of many."""
    net = Attention().to(device)
    seen = []

    def run(x):
        y = net(x)
        seen.append(y.detach()[0, 0, 0].clone())
        return torch.where(torch.arange(16, device=x.device) == 5, seen[0], y) if capturing() else y

    return run, (torch.randn(4, 8, 16, device=device),)


def scaled(device):
    def scale(x):
        return x * 1.0001 if capturing() else x.mul(1.0)

    return scale, (torch.randn(1000, device=device),)


def another_index(device):
    def largest(x):
        return x.argmax() + int(capturing())

    return largest, (torch.randn(100, device=device),)


@torch.library.custom_op("cgtool_tests::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    assert x.dtype == torch.float32, "a kernel of one type"
    return x / 2


def custom_op(device):
    def run(x):
        y = halve(x)
        return y.flip(0).cumsum(0)[-1] if capturing() else y.sum()

    return run, (torch.rand(1000, device=device),)


def counter(device):
    """What differs is not the branch."""
    net, inputs = attention(device)
    calls = [0]

    def run(x):
        calls[0] += 1
        return net(x) * (1 + 1e-4 * calls[0])

    return run, inputs


CHANCE = random.SystemRandom()


@torch.library.custom_op("cgtool_tests::jitter", mutates_args=())
def jitter(x: torch.Tensor) -> torch.Tensor:
    """Adds as atomics do: the sum of other terms, in another order each time."""
    return x + torch.tensor([CHANCE.gauss(0, 1e-7) for _ in range(x.numel())]).reshape(x.shape)


def with_atomics(net, device):
    net = net.to(device)
    net.key.bias.register_hook(jitter)  # its true gradient is zero
    return net, (torch.randn(4, 8, 16, device=device),)


def atomics(device):
    return with_atomics(Attention(), device)


def atomics_and_scaled(device):
    return with_atomics(Attention(1e-3), device)


def drops_the_gradient_of_a_bias(device):
    return with_atomics(Attention(drops=True), device)


def gathers_the_next_row(device):
    table = torch.randn(64, 16, device=device)
    net, _ = attention(device)

    def look_up(index):
        wrong = (torch.arange(32, device=device) == 5).long() if capturing() else 0
        return net(table[index + wrong].reshape(4, 8, 16))

    return look_up, (torch.arange(32, device=device),)


@torch.library.custom_op("cgtool_tests::add_into", mutates_args={"total"})
def add_into(total: torch.Tensor, x: torch.Tensor) -> None:
    """A kernel for float32 that knows the strides of its arguments."""
    assert total.dtype == x.dtype == torch.float32
    total.add_(x)


def custom_op_in_place(device):
    weight = torch.randn(16, 16, device=device)

    def run(x):
        y = x @ weight if not capturing() else (x[:, :8] @ weight[:8] + x[:, 8:] @ weight[8:])
        add_into(y.t()[3:5], x.t()[:2])
        return y * 2

    return run, (torch.randn(4, 16, device=device),)


def kernel(x):
    """A kernel like one of Triton: no op, and it writes to the memory itself."""
    numbers = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    for place, number in enumerate(numbers):
        numbers[place] = 3 * number + 1


def kernel_in_place(device):
    def run(x):
        y = x.exp()
        copy = torch.empty_like(y)
        copy.copy_(y)
        kernel(y)
        kernel(copy)
        return y + 1, copy.sum()

    return run, (torch.linspace(0, 1, 16, device=device),)

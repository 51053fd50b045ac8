"""Attention on the simulated device: the ops of an H200, and the numbers of plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.observe.effects import effect_of, launches
from cgtool.observe.tensors import tensors_in
from cgtool.torch_compat import op_key

HALF, FLOAT = torch.float16, torch.float32


def inputs(
    device, dtype=HALF, size=64, values=None, heads=4, groups=4, length=32, keys=None, mask=None,
    mask_shape=None, learned=False, dims=4, transposed=False, grad=True,
):  # fmt: skip
    """Query, key, value and mask; made on the host, so that they are the same on each device."""
    generator = torch.Generator().manual_seed(3)

    def made(heads, length, size):
        shape = (2, length, heads, size) if transposed else (2, heads, length, size)
        numbers = torch.randn(shape[4 - dims :], generator=generator)
        return numbers.transpose(1, 2) if transposed else numbers

    keys = keys or length
    tensors = [
        made(heads, length, size), made(groups, keys, size), made(groups, keys, values or size)
    ]  # fmt: skip
    tensors = [each.to(device, dtype).requires_grad_(grad) for each in tensors]
    if mask is None:
        return *tensors, None
    bias = torch.randn(mask_shape or (length, keys), generator=generator)
    if mask is bool:
        return *tensors, (bias > 0).to(device)
    return *tensors, bias.to(device, dtype).requires_grad_(learned)


def attend(query, key, value, mask, dropout=0.0, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, causal, enable_gqa=query.size(-3) != key.size(-3)
    )


def split(options):
    return {name: options.pop(name) for name in ("dropout", "causal") if name in options}, options


CUDNN, FLASH, EFFICIENT = "cudnn_attention", "flash_attention", "efficient_attention"
FROM_BOOL = ("scalar_tensor", "scalar_tensor", "where")
MATH = ("mul", "mul", "bmm", "_safe_softmax", "bmm")
MATH_BACKWARD = ("bmm", "bmm", "_softmax_backward_data", "bmm", "bmm", "mul", "copy_", "mul")
COPIES = ("copy_", "copy_", "copy_")
PAD = "constant_pad_nd"
ON_H200 = [
    ({}, (CUDNN,), (CUDNN,)),
    ({"dtype": torch.bfloat16}, (CUDNN,), (CUDNN,)),
    ({"dtype": FLOAT}, (EFFICIENT,), (EFFICIENT, *COPIES)),
    ({"dtype": FLOAT, "transposed": True}, (EFFICIENT,), (EFFICIENT,)),
    ({"dtype": torch.float64}, MATH, MATH_BACKWARD),
    ({"dropout": 0.1}, (CUDNN,), (CUDNN,)),
    ({"dropout": 0.1, "dtype": FLOAT}, (EFFICIENT,), (EFFICIENT, *COPIES)),
    ({"dropout": 0.1, "causal": True}, (CUDNN,), (CUDNN,)),
    ({"dropout": 0.1, "length": 1, "keys": 32}, (FLASH,), (FLASH,)),
    ({"causal": True, "keys": 48}, (CUDNN,), (CUDNN,)),
    ({"keys": 1}, (FLASH,), (FLASH,)),
    ({"size": 36}, (PAD, PAD, PAD, FLASH), ("slice_backward", FLASH, PAD, PAD, PAD)),
    ({"size": 33, "dtype": FLOAT}, MATH, MATH_BACKWARD),
    ({"size": 304}, (EFFICIENT,), (EFFICIENT, *COPIES)),
    ({"values": 32}, (CUDNN,), (CUDNN,)),
    ({"mask": bool}, (*FROM_BOOL, CUDNN), (CUDNN,)),
    ({"mask": float}, (CUDNN,), (CUDNN,)),
    ({"mask": float, "mask_shape": (4, 32, 32)}, (EFFICIENT,), (EFFICIENT, *COPIES)),
    ({"mask": float, "learned": True}, (EFFICIENT,), (EFFICIENT, *COPIES, "sum")),
    (
        {"mask": bool, "length": 30, "dtype": FLOAT},
        (*FROM_BOOL, PAD, EFFICIENT),
        (EFFICIENT, *COPIES),
    ),
    ({"groups": 2}, (CUDNN,), (CUDNN,)),
    ({"groups": 2, "dropout": 0.1}, (CUDNN,), (CUDNN,)),
    ({"groups": 2, "dtype": FLOAT, "grad": False}, ("mul", "clone", "clone", *MATH[1:]), ()),
    ({"dims": 3, "dtype": FLOAT}, MATH, MATH_BACKWARD),
    ({"grad": False}, (CUDNN,), ()),
]
"""Ops that launch work in forward and backward, as seen by a dispatch mode with PyTorch 2.11."""


@pytest.mark.parametrize(("options", "forward", "backward"), ON_H200, ids=str)
def test_the_ops_are_those_of_an_h200(options, forward, backward):
    names = []

    def observe(op, args, kwargs, run, caller):
        result = run(*args, **kwargs)
        if not effect_of(op).view and launches(op.name(), list(tensors_in(result))):
            name = op.name().partition(".")[0].removeprefix("aten::")
            name = name.removeprefix("_scaled_dot_product_")
            names.append(name.removesuffix("_backward") if "attention" in name else name)
        return result

    call, tensors = split(dict(options))
    with SimulatedDevice("test").active():
        given = inputs("cuda", **tensors)
        with op_key.watch(observe):
            out = attend(*given, **call)
            assert tuple(names) == forward
            ones = torch.ones_like(out)
            names.clear()
            if out.requires_grad:
                out.backward(ones)
    # PyTorch 2.14 runs two branches of one in the other order.
    assert sorted(names) == sorted(backward)


def values_and_gradients(device, options, dtype):
    call, tensors = split({**options, "dtype": dtype})
    given = inputs(device, **tensors)
    leaves = [each for each in given if each is not None and each.requires_grad]
    out = attend(*given, **call)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(device, dtype)
    grads = torch.autograd.grad(out, leaves, weights)
    return [each.detach().cpu().double() for each in (out, *grads)]


@pytest.mark.parametrize("dtype", [FLOAT, HALF, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"mask": bool},
        {"mask": float, "learned": True},
        {"groups": 2},
        {"groups": 2, "values": 16, "mask": bool},
        {"size": 36, "transposed": True},
        {"length": 8, "keys": 30, "causal": True},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_plain_pytorch(options, dtype):
    exact = values_and_gradients("cpu", options, torch.float64)
    plain = values_and_gradients("cpu", options, dtype)
    with SimulatedDevice("test").active():
        simulated = values_and_gradients("cuda", options, dtype)
    for expected, cpu, value in zip(exact, plain, simulated, strict=True):
        assert (value - expected).abs().max() <= 3 * (cpu - expected).abs().max() + 1e-6


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"mask": float, "learned": True}, {"values": 16}], ids=str
)
def test_a_backward_drops_what_its_forward_has_dropped(options):
    call, tensors = split({**options, "dtype": FLOAT, "length": 16, "size": 16})
    with SimulatedDevice("test").active():
        given = [each for each in inputs("cuda", **tensors) if each is not None]

        def loss(*given):
            torch.manual_seed(5)
            mask = given[3] if len(given) > 3 else None
            return attend(*given[:3], mask, dropout=0.3, **call).square().sum()

        grads = torch.autograd.grad(loss(*given), given)
        for position, (tensor, grad) in enumerate(zip(given, grads, strict=True)):
            step = 0.01 * grad / grad.norm()
            ends = [[*given], [*given]]
            ends[0][position], ends[1][position] = tensor - step, tensor + step
            below, above = (loss(*end).item() for end in ends)
            assert above - below == pytest.approx(0.02 * grad.norm().item(), rel=0.02)


def test_dropout_keeps_the_mean():
    with SimulatedDevice("test").active(), torch.no_grad():
        given = inputs("cuda", length=8, size=16)
        mean = sum(attend(*given, dropout=0.25).float() for _ in range(1000)) / 1000
        assert (mean - attend(*given)).abs().max() < 0.1


def test_attention_that_the_program_asks_for():
    attention, backend = torch.nn.attention.sdpa_kernel, torch.nn.attention.SDPBackend
    with SimulatedDevice("test").active():
        given = inputs("cuda", dtype=FLOAT)
        with attention(backend.EFFICIENT_ATTENTION):
            attend(*given)
        with attention(backend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No viable"):
            attend(*given)

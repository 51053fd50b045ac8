"""The numbers of a tensor in a few, compared with NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cgtool.devices import values


def values_of(name, tensor):
    (found,) = values.values_of([(name, tensor)])
    return found


TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", TYPES)
def test_figures_are_those_of_numpy(dtype, monkeypatch):
    monkeypatch.setattr(values, "PART", 7)
    tensor = (torch.arange(40).reshape(5, 8) % 13).to(dtype)
    if dtype.is_floating_point:
        tensor[1, 2], tensor[3, 4], tensor[4, 0] = float("nan"), float("inf"), -3.5
    found = values_of("out", tensor.t())
    numbers = tensor.double().numpy()
    finite = numbers[np.isfinite(numbers)]
    assert (found.name, found.shape) == ("out", (8, 5))
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    assert math.isclose(found.mean, finite.mean())
    assert math.isclose(found.norm, np.sqrt((finite**2).sum()))
    assert found.zeros == (numbers == 0).sum()
    bad = dtype.is_floating_point
    assert (found.nans, found.infinities, found.first) == (bad, bad, (2, 1) if bad else None)


def test_a_tensor_without_a_finite_number():
    found = values_of("out", torch.tensor([[float("inf"), float("nan")]]))
    assert (found.minimum, found.mean, found.nans, found.infinities) == (None, None, 1, 1)
    assert found.first == (0, 1)


def test_the_index_in_a_complex_tensor():
    found = values_of("out", torch.tensor([[1 + 1j, complex(0, float("nan"))]]))
    assert found.first == (0, 1)


def test_digests_are_of_bits_and_places():
    tensor = torch.arange(24.0)
    digest = values_of("a", tensor).digest
    assert values_of("b", tensor.clone()).digest == digest
    changed = [tensor.flip(0), tensor + 0.5, torch.cat((tensor, torch.zeros(1)))]
    assert digest not in {values_of("a", each).digest for each in changed}
    assert values_of("a", torch.tensor([0.0])).digest != values_of("a", torch.tensor([-0.0])).digest


@pytest.mark.parametrize("size", [1, 4, 7, 8, 20])
def test_the_digest_by_another_arithmetic(size, monkeypatch):
    monkeypatch.setattr(values, "PART", 4)
    words = torch.randint(-(1 << 31), 1 << 31, (size,), dtype=torch.int64)
    total = size
    for at, word in enumerate(words.tolist()):
        factor = ((at % 4 + 1) * 0x9E3779B97F4A7C15 | 1) % (1 << 64)
        factor = factor - (1 << 64) if factor >> 63 else factor
        total += word * (factor ^ (factor >> 29)) * (2 * (at // 4) + 1)
    expected = (total + (1 << 63)) % (1 << 64) - (1 << 63)
    assert values_of("a", words.int()).digest == expected


def test_memory_that_is_not_aligned_is_read():
    tensor = torch.arange(9.0).bfloat16()
    assert values_of("a", tensor[1:]).digest == values_of("a", tensor[1:].clone()).digest


def test_several_tensors_are_read_at_once(monkeypatch):
    monkeypatch.setattr(values, "PART", 4)
    tensors = [torch.arange(9.0), torch.arange(3, dtype=torch.int64), torch.tensor([float("nan")])]
    found = values.values_of([("a", tensor) for tensor in tensors])
    assert found == tuple(values_of("a", tensor) for tensor in tensors)

"""``scaled_dot_product_attention`` as a GPU runs it: one fused op in forward, and one in backward.

The CPU has one such op, which takes no dropout and no mask that requires grad. So the GPU's ops get
kernels for CPU tensors here, and autograd calls them by PyTorch's own formulas. Which op runs is
decided as on an H200 with PyTorch 2.11 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.backends import cuda as settings
from torch.nn import functional

from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.model.capture import Caveat
from cgtool.observe.frames import call_op
from cgtool.observe.tensors import DEVICE
from cgtool.torch_compat.private import (
    kernels_for_a_while,
    key_is_excluded,
    parse_key,
    schema_of,
)

aten = torch.ops.aten
_AUTOCAST = parse_key("AutocastCPU")
_HALF = (torch.float16, torch.bfloat16)
_CHOSEN_BY_GPU = Caveat(
    "attention-backend",
    "attention runs `_scaled_dot_product_cudnn_attention`, as on an H200 with cuDNN 9.15.1 or "
    "newer; other GPUs run flash or efficient attention, which is one op each way, too",
)
_NESTED = Caveat(
    "attention-nested",
    "attention of nested tensors is several ops here, and one fused op on a GPU",
)


def attention(
    device: DeviceModel,
    place: str,
    run: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The handler of ``aten::scaled_dot_product_attention``, which is made of other ops."""
    whole = partial(
        call_op,
        run,
        (query, key, value, attn_mask, dropout_p, is_causal),
        {"scale": scale, "enable_gqa": enable_gqa},
    )
    if place != DEVICE or not key_is_excluded(_AUTOCAST):
        return whole()  # autocast converts the tensors, and calls the op again
    if query.is_nested:
        device.note_difference(_NESTED)
        return whole()
    backend = _backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if backend is None:
        with _only_math():
            return whole()

    size, mask = query.size(-1), attn_mask
    if mask is not None and mask.dtype == torch.bool:
        zero, masked = (
            torch.scalar_tensor(number, dtype=query.dtype, device=query.device)
            for number in (0.0, float("-inf"))
        )
        mask = torch.where(mask, zero, masked)
    records = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    rest: tuple[Any, ...] = (dropout_p, is_causal)
    if backend == "flash":
        scale = size**-0.5 if scale is None else scale
        if size % 8:
            padding = (0, 8 - size % 8)
            query, key, value = (functional.pad(each, padding) for each in (query, key, value))
    else:
        if backend == "cudnn":
            device.note_difference(_CHOSEN_BY_GPU)
        elif mask is not None:
            if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
                length = mask.size(-1)
                mask = functional.pad(mask, (0, 8 - length % 8))[..., :length]
            mask = mask.expand(*query.shape[:3], key.size(2))
        rest = (mask, records, *rest)
    op = getattr(torch.ops.aten, f"_scaled_dot_product_{backend}_attention").default
    result = call_op(op, (query, key, value, *rest), {"scale": scale})[0]
    return result[..., :size] if result.size(-1) > size and backend == "flash" else result


def _backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    is_grouped: bool,
) -> str | None:
    """The fused kernel that a GPU chooses: ``cudnn``, ``flash`` or ``efficient``; None if it has
    none for these arguments."""
    tensors = query, key, value
    if any(
        each.dim() != 4
        or not each.numel()
        or each.stride(-1) != 1
        or each.dtype != query.dtype
        or each.size(0) != query.size(0)
        for each in tensors
    ):
        return None
    (_, heads, length, size), keys, value_size = query.shape, key.size(2), value.size(3)
    groups = key.size(1)
    if (keys, groups) != (value.size(2), value.size(1)) or key.size(3) != size or dropout >= 1:
        return None
    if heads != groups and not (is_grouped and heads % groups == 0):
        return None
    if mask is not None and (
        mask.dtype not in (torch.bool, query.dtype) or not _fits(mask, (*query.shape[:3], keys))
    ):
        return None
    is_half, learned = query.dtype in _HALF, mask is not None and mask.requires_grad
    is_exact = (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )
    if (
        is_half and settings.cudnn_sdp_enabled() and not is_exact and not learned
        and (mask is None or mask.dim() in (2, 4))
        and size % 8 == value_size % 8 == 0 and max(size, value_size) <= 256
        and keys > 1 and not (dropout and length == 1)
    ):  # fmt: skip
        return "cudnn"
    if (
        is_half and settings.flash_sdp_enabled() and mask is None
        and size == value_size <= 256 and (not is_causal or length == keys)
    ):  # fmt: skip
        return "flash"
    alignment = 8 if is_half else 4
    if (
        (is_half or query.dtype == torch.float32) and settings.mem_efficient_sdp_enabled()
        and heads == groups and size % alignment == value_size % alignment == 0
    ):  # fmt: skip
        return "efficient"
    return None


def _fits(mask: torch.Tensor, shape: tuple[int, ...]) -> bool:
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    return mask.dim() <= len(shape) and all(given in (1, needed) for given, needed in pairs)


@contextlib.contextmanager
def _only_math() -> Iterator[None]:
    """The CPU has a fused kernel for some arguments that a GPU has none for."""
    enabled = settings.flash_sdp_enabled()
    settings.enable_flash_sdp(False)
    try:
        yield
    finally:
        settings.enable_flash_sdp(enabled)


@contextlib.contextmanager
def fused_kernels() -> Iterator[None]:
    """While entered, the GPU's ops run on CPU tensors."""
    with kernels_for_a_while("aten", "IMPL") as library:
        for backend in ("cudnn", "flash", "efficient"):
            for kernel, suffix in ((_forward, ""), (_backward, "_backward")):
                name = f"_scaled_dot_product_{backend}_attention{suffix}"
                op = getattr(aten, name).default
                library.impl(name, partial(kernel, op, backend == "efficient"), "CPU")
        yield


def _forward(op: Any, is_efficient: bool, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The kernel of the forward ops, which return their output, what their backward needs of the
    softmax, and the seed of the dropout."""
    call = _Call(op, args, kwargs)
    seed = torch.zeros((), dtype=torch.int64)
    if call.dropout:
        seed.random_()
    out, log_sums = call.forward(seed)
    out = _in_order(out, None if is_efficient else call.query)
    state = seed, torch.zeros_like(seed)
    if is_efficient:
        return out, log_sums, *state
    return out, log_sums, None, None, call.query.size(2), call.key.size(2), *state, None


def _backward(op: Any, is_efficient: bool, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The kernel of the backward ops, which return the gradients of query, key and value; that of
    efficient attention that of the mask, too."""
    call = _Call(op, args, kwargs)
    *grads, grad_bias = call.backward()
    if is_efficient:
        return *map(_in_order, grads), grad_bias
    return tuple(map(_in_order, grads, (call.query, call.key, call.value)))


def _in_order(result: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """A result of [batch, heads, length, size] with its dimensions in memory in the order of
    ``like``; None: batch, length, heads, size, as efficient attention leaves them."""
    if like is not None and like.stride(1) >= like.stride(2):
        return result.contiguous()
    return result.transpose(1, 2).contiguous().transpose(1, 2)


class _Call:
    """One call of a kernel. By the CPU's own one where that can compute it; else in float32 or
    wider, with all weights of [batch, heads, length, keys] in memory."""

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = (argument.name for argument in schema_of(op).arguments)
        self.given = given = dict(zip(names, args, strict=False)) | kwargs
        self.query, self.key, self.value = (given[name] for name in ("query", "key", "value"))
        self.bias: torch.Tensor | None = given.get("attn_bias")
        self.dropout: float = given.get("dropout_p", 0.0)
        self.is_causal: bool = given.get("is_causal", False)
        scale = given.get("scale")
        self.scale: float = self.query.size(-1) ** -0.5 if scale is None else scale
        self.groups = self.query.size(1) // self.key.size(1)
        self.wide = torch.promote_types(self.query.dtype, torch.float32)
        self.is_plain = not self.dropout and self.query.size(-1) == self.value.size(-1)

    def forward(self, seed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(output, logarithm of the sums of the softmax [batch, heads, length])"""
        if self.is_plain:
            out, log_sums = aten._scaled_dot_product_flash_attention_for_cpu(
                self.query, self.key, self.value, 0.0, self.is_causal,
                attn_mask=self.bias, scale=self.scale,
            )  # fmt: skip
            return out, log_sums
        weights, kept, log_sums = self._weights(seed)
        return (weights * kept @ self._repeated(self.value)).to(self.query.dtype), log_sums

    def backward(self) -> tuple[Any, ...]:
        """Gradients of query, key, value and the mask, or None for that."""
        grad, out = next(iter(self.given.values())), self.given["out"]
        with_bias = "grad_input_mask" in self.given and self.given["grad_input_mask"][3]
        if self.is_plain and not with_bias:
            grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, self.query, self.key, self.value, out, self.given["logsumexp"], 0.0,
                self.is_causal, attn_mask=self.bias, scale=self.scale,
            )  # fmt: skip
            return *grads, None
        weights, kept, _ = self._weights(self.given["philox_seed"])
        grad = grad.to(self.wide)
        of_weights = grad @ self._repeated(self.value).mT * kept
        of_scores = weights * (of_weights - (grad * out).sum(-1, keepdim=True))
        of_query = of_scores @ self._repeated(self.key) * self.scale
        of_key = self._summed(of_scores.mT @ self.query.to(self.wide)) * self.scale
        of_value = self._summed((weights * kept).mT @ grad)
        grads = (of_query, of_key, of_value, of_scores if with_bias else None)
        return tuple(each if each is None else each.to(self.query.dtype) for each in grads)

    def _weights(self, seed: torch.Tensor) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """(the softmax, what dropout multiplies it with, logarithm of its sums)"""
        scores = self.query.to(self.wide) @ self._repeated(self.key).mT * self.scale
        if self.bias is not None:
            scores += self.bias
        if self.is_causal:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores.masked_fill_(~visible, float("-inf"))
        log_sums = scores.logsumexp(-1)
        # NaN where a row is masked as a whole.
        weights = (scores - log_sums.unsqueeze(-1)).exp_().nan_to_num_(0)
        if not self.dropout:
            return weights, 1, log_sums
        generator = torch.Generator().manual_seed(int(seed))
        kept = torch.rand(weights.shape, generator=generator) >= self.dropout
        return weights, kept.to(self.wide) / (1 - self.dropout), log_sums

    def _repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.wide).repeat_interleave(self.groups, 1)

    def _summed(self, grad: torch.Tensor) -> torch.Tensor:
        batch, heads, *rest = grad.shape
        return grad.view(batch, heads // self.groups, self.groups, *rest).sum(2)

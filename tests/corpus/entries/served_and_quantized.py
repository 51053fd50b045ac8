"""Serving and quantization: sampling, caches, filters, ranks."""

import heapq

import torch
from torch import nn
from torch.nn import functional


def nucleus_by_masked_assignment(device):
    def f(logits):
        ordered, order = logits.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        # A mask and a Python number: masked_fill, whose value is not read from the device.
        ordered[before > 0.9] = float("-inf")
        noise = torch.empty_like(ordered).exponential_()
        pick = (ordered.softmax(-1) / noise).argmax(-1, keepdim=True)
        return order.gather(-1, pick)

    return f, (torch.randn(4, 20, device=device),)


class Floor(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("lowest", torch.tensor(-1e4))

    def forward(self, logits, mask):
        logits = logits.clone()
        # Only a value on the CPU becomes a masked_fill (canDispatchToMaskedFill). With one of
        # the device the mask is turned into indices by nonzero: refused.
        logits[mask] = self.lowest  # guilty: the number of masked elements is read
        return logits.softmax(-1)


def masked_by_a_buffer(device):
    mask = torch.rand(3, 10, device=device) < 0.3
    return Floor().to(device), (torch.randn(3, 10, device=device), mask)


def many_banned_tokens(device):
    banned = torch.arange(0, 120, 3, device=device)

    def f(tokens, scores):
        # 40 banned tokens for 8: isin sorts, by _unique of the tokens, whose size is read.
        hit = torch.isin(tokens, banned)  # guilty: unique in isin
        return torch.where(hit, -1e4, scores)

    return f, (torch.randint(0, 120, (8,), device=device), torch.randn(8, device=device))


def few_stop_tokens(device):
    stops = torch.tensor([2, 5, 7], device=device)

    def f(tokens, finished):
        # 3 tests for 64 tokens: isin compares each with each, and sorts nothing.
        return finished | torch.isin(tokens, stops).any(-1)

    finished = torch.zeros(8, dtype=torch.bool, device=device)
    return f, (torch.randint(0, 40, (8, 8), device=device), finished)


class CrossAttention(nn.Module):
    """Keys and values of the encoder, computed again only when its output was written."""

    def __init__(self):
        super().__init__()
        self.query, self.pair = nn.Linear(8, 8), nn.Linear(8, 16)
        self.seen = self.keys = self.values = None

    @torch.no_grad()
    def forward(self, x, memory):
        stamp = (memory.data_ptr(), memory._version)  # guilty: changes on the host
        # A new memory is written into the same tensor: its version changes, so eager projects
        # again. The graph was captured with a filled cache: replays use the old keys.
        if stamp != self.seen:  # guilty: the branch is frozen, a new memory is never projected
            self.keys, self.values = self.pair(memory).chunk(2, -1)  # guilty: missing in the graph
            self.seen = stamp  # guilty: the stamp of the capture stays
        return functional.scaled_dot_product_attention(
            self.query(x), self.keys, self.values
        )  # guilty: stale keys


def cross_attention_remembering_versions(device):
    return CrossAttention().to(device), (
        torch.randn(2, 3, 8, device=device),
        torch.randn(2, 6, 8, device=device),
    )


class PagedCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pages", torch.zeros(6, 4, 8))

    @torch.no_grad()
    def forward(self, query, key, slots, table):
        self.pages[slots // 4, slots % 4] = key
        context = self.pages[table].flatten(1, 2)
        scores = torch.einsum("bd,btd->bt", query, context)
        return torch.einsum("bt,btd->bd", scores.softmax(-1), context)


def pages_written_by_slots(device):
    # Integer index tensors on the device: index_put_ and index, of fixed shapes.
    slots = torch.tensor([5, 17], device=device)
    table = torch.tensor([[0, 1], [3, 4]], device=device)
    pair = torch.randn(2, 8, device=device), torch.randn(2, 8, device=device)
    return PagedCache().to(device), (*pair, slots, table)


def drafts_accepted_by_products(device):
    def f(draft, logits):
        target = logits.argmax(-1)
        agreed = (draft == target[:, :-1]).long().cumprod(-1)
        count = agreed.sum(-1, keepdim=True)
        bonus = target.gather(-1, count)
        at = torch.arange(draft.shape[1] + 1, device=draft.device)
        padded = functional.pad(draft, (0, 1))
        return torch.where(at < count, padded, torch.where(at == count, bonus, -1)), count

    return f, (torch.randint(0, 3, (4, 5), device=device), torch.randn(4, 6, 3, device=device))


def beams_kept_by_a_heap(device):
    def f(scores, states):
        # The heap compares 0-dim tensors: each comparison is a bool() of a device tensor.
        best = heapq.nlargest(2, scores.sum(-1).unbind())  # guilty: compares tensors
        return torch.stack(best)[:, None] * states[:2]

    return f, (torch.randn(5, 3, device=device), torch.randn(5, 4, device=device))


def resampled_through_a_sorter(device):
    def f(weights, positions):
        order = weights.argsort()
        # With a sorter, searchsorted checks the range of its indices by item().
        found = torch.searchsorted(weights, positions, sorter=order)  # guilty: reads the sorter
        return order[found.clamp(max=9)]

    return f, (torch.rand(10, device=device), torch.rand(6, device=device))


def channels_with_integer_zero_points(device):
    weight = torch.randn(4, 6, device=device)
    zeros = torch.zeros(4, dtype=torch.int32, device=device)

    def f(x):
        scale = weight.abs().amax(1) / 127
        # Integer zero points are checked against the range by item().
        rounded = torch.fake_quantize_per_channel_affine(
            weight, scale, zeros, 0, -128, 127
        )  # guilty: reads zero points
        return functional.linear(x, rounded)

    return f, (torch.randn(3, 6, device=device),)


class Fake(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero", torch.zeros(1, dtype=torch.int32))

    def forward(self, x):
        with torch.no_grad():
            self.scale.lerp_(x.abs().amax().reshape(1) / 127, 0.1)
        # Scale and zero point are tensors: read by the kernel.
        return torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, -128, 127)


def activations_with_a_moving_scale(device):
    return Fake().to(device), (torch.randn(3, 6, device=device),)


def blocks_with_a_shared_exponent(device):
    def f(x):
        blocks = x.reshape(-1, 8)
        _, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True))
        mantissa = torch.ldexp(blocks, 6 - exponent).round().clamp(-63, 63).to(torch.int8)
        return mantissa, torch.ldexp(mantissa.to(x.dtype), exponent - 6).reshape(x.shape)

    return f, (torch.randn(4, 16, device=device),)


def levels_removed_from_a_list(device):
    # Lists and dictionaries compare by identity first: no tensor is compared by value.
    def f(pyramid):
        pending = list(pyramid.unbind(1))
        weights = {level: 2.0**-index for index, level in enumerate(pending)}
        total = torch.zeros_like(pending[0])
        while pending:
            head = pending[0]
            total = total + weights[head] * head
            pending.remove(head)
        return total

    return f, (torch.randn(3, 4, 5, device=device),)

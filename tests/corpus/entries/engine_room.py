"""What a serving engine does in one decode step: pages, samplers, adapters, drafts."""

import collections
import itertools

import torch
from torch import nn

EOS = 2
FORBIDDEN = [5, 9]


class RingOfBlocks:
    def __init__(self, device):
        self.free = collections.deque(range(8))
        self.pages = torch.zeros(8, 4, 6, device=device)
        self.weights = torch.arange(1.0, 9.0, device=device).view(8, 1, 1)

    def __call__(self, keys):
        # The allocator of pages lives on the host: a replay writes the page of the capture.
        block = self.free.popleft()  # guilty: chosen on the host
        self.free.append(block)  # guilty: the ring turns on the host
        self.pages[block].copy_(keys)  # guilty: the page of the capture
        return (self.pages * self.weights).sum(0)


def pages_from_a_ring_of_blocks(device):
    return RingOfBlocks(device), (torch.randn(4, 6, device=device),)


class PagedStep:
    def __init__(self, device):
        self.pages = torch.zeros(12, 4, 8, device=device)
        self.table = torch.arange(12, device=device).view(3, 4)
        self.lengths = torch.tensor([1, 3, 6], device=device)

    def __call__(self, query, key):
        page = self.table.gather(1, (self.lengths // 4).unsqueeze(1)).squeeze(1)
        slot = page * 4 + self.lengths % 4
        self.pages.view(-1, 8)[slot] = key
        self.lengths.add_(1).clamp_(max=15)
        context = self.pages[self.table].flatten(1, 2)
        scores = torch.einsum("bd,btd->bt", query, context)
        hidden = torch.arange(16, device=query.device) >= self.lengths.unsqueeze(1)
        scores[hidden] = float("-inf")
        return torch.einsum("bt,btd->bd", scores.softmax(-1), context)


def paged_decode_with_a_block_table(device):
    # Slots, lengths and table are on the device; a mask with a number is filled, not indexed.
    return PagedStep(device), (torch.randn(3, 8, device=device), torch.randn(3, 8, device=device))


class Ragged:
    def __init__(self, device):
        self.lengths = torch.tensor([3, 1, 4], device=device)
        self.scales = torch.rand(3, 6, device=device)

    def __call__(self, tokens):
        # Without output_size, the sum of the lengths is read to allocate the result.
        owner = torch.repeat_interleave(self.scales, self.lengths, dim=0)  # guilty: reads the sum
        return tokens * owner


def scales_of_ragged_requests(device):
    return Ragged(device), (torch.randn(8, 6, device=device),)


class AdaptersInTurn:
    def __init__(self, device):
        pool = [
            (torch.randn(8, 2, device=device), torch.randn(2, 8, device=device)) for _ in range(3)
        ]
        self.base = torch.randn(8, 8, device=device)
        self.turn = itertools.cycle(pool)

    def __call__(self, x):
        down, up = next(self.turn)  # guilty: the host takes the next adapter, a replay does not
        return x @ self.base + x @ down @ up  # guilty: multiplies with the adapter of the capture


def adapters_served_in_turn(device):
    return AdaptersInTurn(device), (torch.randn(5, 8, device=device),)


class AdapterPerToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.down = nn.Parameter(torch.randn(4, 8, 2))
        self.up = nn.Parameter(torch.randn(4, 2, 8))

    @torch.no_grad()
    def forward(self, x, slot):
        used = slot >= 0
        rows = slot.clamp(min=0)
        low = torch.bmm(x.unsqueeze(1), self.down[rows])
        extra = torch.bmm(low, self.up.index_select(0, rows)).squeeze(1)
        return self.base(x) + extra.masked_fill(~used.unsqueeze(1), 0.0)


def adapter_chosen_by_each_token(device):
    slots = torch.tensor([0, -1, 3, 2, -1], device=device)
    return AdapterPerToken().to(device), (torch.randn(5, 8, device=device), slots)


class RepetitionOfAll:
    def __init__(self):
        self.seen = []

    def __call__(self, logits):
        if self.seen:
            history = torch.stack(self.seen, 1)  # guilty: as many as at the capture
            penalty = torch.full_like(history, 1.5, dtype=logits.dtype)  # guilty: here too
            logits = logits.scatter_add(1, history, -penalty)  # guilty: the history of the capture
        token = logits.argmax(-1)
        # Eager remembers one more token in each call; a replay appends nothing.
        self.seen.append(token)  # guilty: grows on the host
        return token


def repetition_penalty_of_a_growing_list(device):
    return RepetitionOfAll(), (torch.randn(3, 12, device=device),)


class CountedPenalty:
    def __init__(self, device):
        self.counts = torch.zeros(3, 12, device=device)

    def __call__(self, logits):
        logits = torch.where(logits > 0, logits / 1.2, logits * 1.2).where(self.counts > 0, logits)
        logits = logits - 0.1 * self.counts
        token = logits.argmax(-1, keepdim=True)
        self.counts.scatter_add_(1, token, torch.ones_like(token, dtype=self.counts.dtype))
        return token


def repetition_penalty_by_counts(device):
    return CountedPenalty(device), (torch.randn(3, 12, device=device),)


def forbidden_tokens_of_a_list(device):
    def f(logits):
        logits = logits.clone()
        # The list becomes a tensor on the host, which is copied to the device in each call.
        logits[:, FORBIDDEN] = float("-inf")  # guilty: copies the list from pageable memory
        return logits.softmax(-1)

    return f, (torch.randn(3, 12, device=device),)


def activations_in_a_quantized_dtype(device):
    weight = torch.randn(6, 6, device=device)

    def f(x):
        scale = x.abs().amax() / 127
        zero = torch.zeros((), dtype=torch.long, device=x.device)
        # With tensors as parameters, both are read on the host, with item().
        q = torch.quantize_per_tensor(x, scale, zero, torch.qint8)  # guilty: reads scale and zero
        return q.dequantize() @ weight

    return f, (torch.randn(4, 6, device=device),)


class Nibbles(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (8, 4), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(8, 2))
        self._levels = None

    def forward(self, x):
        if self._levels is None:
            # Once, in the warm-up: the weights do not change later.
            low, high = self.packed & 15, self.packed >> 4
            self._levels = torch.stack([low, high], -1).flatten(1).to(torch.int8) - 8
        groups = self._levels.view(8, 2, 4).to(x.dtype) * self.scales.unsqueeze(-1)
        return nn.functional.linear(x, groups.flatten(1))


def nibbles_unpacked_at_first_use(device):
    return Nibbles().to(device), (torch.randn(3, 8, device=device),)


def stops_if_a_token_is_in_the_batch(device):
    head = torch.randn(8, 12, device=device)

    def f(hidden):
        tokens = (hidden @ head).argmax(-1)
        # Tensor.__contains__ is (self == element).any().item().
        if EOS in tokens:  # guilty: asks the device whether one has ended
            return tokens.clamp(min=EOS)
        return tokens

    return f, (torch.randn(4, 8, device=device),)


def draws_above_a_minimal_probability(device):
    def f(logits):
        probabilities = logits.softmax(-1)
        floor = 0.1 * probabilities.amax(-1, keepdim=True)
        kept = torch.where(probabilities < floor, 0.0, probabilities)
        # multinomial() checks its weights with asserts on the device.
        return torch.multinomial(kept, 1)

    return f, (torch.randn(3, 12, device=device),)


def draws_by_an_exponential_race(device):
    def f(logits, temperature, k):
        logits = logits / temperature.unsqueeze(1)
        ordered = logits.sort(-1, descending=True).values
        least = ordered.gather(1, (k - 1).unsqueeze(1))
        probabilities = logits.masked_fill(logits < least, -float("inf")).softmax(-1)
        race = torch.empty_like(probabilities).exponential_(1.0)
        return probabilities.div_(race).argmax(-1)

    k = torch.tensor([3, 5, 1], device=device)
    return f, (torch.randn(3, 12, device=device), torch.rand(3, device=device) + 0.5, k)


class Buckets:
    SIZES = (2, 4, 8)

    def __init__(self, device):
        self.buffers = {size: torch.zeros(size, 6, device=device) for size in self.SIZES}
        self.weight = torch.randn(6, 6, device=device)

    def __call__(self, x):
        size = next(size for size in self.SIZES if size >= len(x))
        padded = self.buffers[size]
        padded[: len(x)].copy_(x)
        padded[len(x) :].zero_()
        out = torch.tanh(padded @ self.weight)
        return out[: len(x)].clone()


def batch_padded_to_a_bucket(device):
    # The bucket depends on a shape, which is the same in all replays.
    return Buckets(device), (torch.randn(3, 6, device=device),)


def drafts_verified_in_a_tree(device):
    parents = (-1, 0, 0, 1, 1, 2)

    def f(query, key, value):
        mask = torch.zeros(6, 6, dtype=torch.bool, device=query.device)
        for node in range(len(parents)):
            above = node
            while above >= 0:
                # The number is a CPU tensor of the shape of the element: copied, not filled.
                mask[node, above] = True  # guilty: copies the number from pageable memory
                above = parents[above]
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    shape = (1, 2, 6, 8)
    return f, tuple(torch.randn(shape, device=device) for _ in range(3))

"""Inference engines: schedulers, samplers, caches, adapters, experts, in the manner of projects."""

import abc
import contextvars
import dataclasses
import enum
import functools
import heapq
import math
import time
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

# --- a batch of running requests, scheduled on the host


class Request(NamedTuple):
    slot: int
    length: int


class ContinuousBatching(nn.Module):
    """Admits one waiting request in each step, until all run."""

    def __init__(self, device):
        super().__init__()
        self.waiting = deque(Request(slot, 3) for slot in range(1, 200))
        self.running = [Request(0, 3)]
        self.proj = nn.Linear(8, 8, device=device)
        self.bias = torch.arange(200.0, device=device)

    @torch.no_grad()
    def forward(self, hidden):
        if self.waiting:  # guilty: the same
            self.running.append(self.waiting.popleft())  # guilty: the same
        active = len(self.running)
        return self.proj(hidden) + self.bias[active]  # guilty: the number of requests at capture


def requests_are_admitted(device):
    return ContinuousBatching(device), (torch.randn(4, 8, device=device),)


class ChunkedPrefill:
    def __init__(self, device):
        self.prompt = torch.randn(4096, 8, device=device)
        self.offset, self.chunk = 0, 1

    def next_chunk(self):
        start = self.offset
        self.offset = start + self.chunk  # guilty: the same
        return self.prompt[start : self.offset]

    def __call__(self, state):
        return state + self.next_chunk().sum(0)  # guilty: the chunk that was next at capture


def prompt_in_chunks(device):
    return ChunkedPrefill(device), (torch.randn(8, device=device),)


class RadixNode:
    def __init__(self):
        self.children = {}
        self.hits = 0


class PrefixCache:
    """A tree over tokens, walked on the host."""

    def __init__(self):
        self.root = RadixNode()

    def match(self, tokens):
        node, depth = self.root, 0
        for token in tokens:
            if token not in node.children:
                break
            node, depth = node.children[token], depth + 1
            node.hits += 1
        return depth


def prefix_is_matched_on_the_host(device):
    cache = PrefixCache()
    table = torch.randn(16, 8, device=device)

    def f(tokens):
        known = cache.match(tokens.tolist())  # guilty: the tokens are read on the host
        return table[tokens[known:]].sum(0)

    return f, (torch.randint(0, 16, (5,), device=device),)


class GrammarState(enum.Enum):
    START = enum.auto()
    KEY = enum.auto()
    VALUE = enum.auto()


class Grammar:
    """Constrained decoding: which tokens may follow is known on the host."""

    after = {  # noqa: RUF012
        GrammarState.START: GrammarState.KEY,
        GrammarState.KEY: GrammarState.VALUE,
        GrammarState.VALUE: GrammarState.KEY,
    }

    def __init__(self, device):
        self.state = GrammarState.START
        mask = torch.zeros(3, 16, device=device)
        mask[0, 4:], mask[1, ::2], mask[2, 1::2] = -torch.inf, -torch.inf, -torch.inf
        self.masks = dict(zip(GrammarState, mask, strict=True))

    def apply(self, logits):
        logits = logits + self.masks[self.state]  # guilty: the state of the grammar at capture
        self.state = self.after[self.state]  # guilty: the same
        return logits.argmax(-1)


def grammar_advances_on_the_host(device):
    grammar = Grammar(device)
    return grammar.apply, (torch.randn(2, 16, device=device),)


class Criterion(abc.ABC):
    @abc.abstractmethod
    def __call__(self, tokens): ...


class MaxTime(Criterion):
    def __init__(self, seconds):
        self.seconds, self.started = seconds, time.time()

    def __call__(self, tokens):
        return time.time() - self.started > self.seconds  # guilty: the same


class MaxLength(Criterion):
    def __init__(self, length):
        self.length = length

    def __call__(self, tokens):
        return tokens.shape[-1] >= self.length


def stops_after_some_time(device):
    criteria = [MaxLength(32), MaxTime(600.0)]

    def f(tokens, logits):
        done = any(criterion(tokens) for criterion in criteria)  # guilty: the same
        following = logits.argmax(-1)
        return following * 0 if done else following  # guilty: whether the time was up at capture

    tokens = torch.zeros(2, 5, dtype=torch.long, device=device)
    return f, (tokens, torch.randn(2, 16, device=device))


def attention_mask_is_examined(device):
    # What transformers does to leave out a mask that hides nothing.
    def f(q, mask):
        causal = bool(mask.all())  # guilty: the mask is read on the host
        shown = None if causal else mask[:, None, None, :]
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=shown, is_causal=causal)

    q = torch.randn(2, 2, 4, 8, device=device)
    return f, (q, torch.ones(2, 4, dtype=torch.bool, device=device))


class Watermark:
    """Seeds the green list by the token before, as the watermarking paper does."""

    def __init__(self, device):
        self.rng = torch.Generator(device=device)

    def __call__(self, tokens, logits):
        self.rng.manual_seed(15485863 * int(tokens[-1]))  # guilty: the token is read on the host
        order = torch.randperm(logits.shape[-1], device=logits.device, generator=self.rng)
        return logits.index_add(-1, order[:8], torch.full((8,), 2.0, device=logits.device))


def watermark_seeded_by_a_token(device):
    tokens = torch.randint(1, 16, (4,), device=device)
    return Watermark(device), (tokens, torch.randn(16, device=device))


def stop_tokens_from_a_list(device):
    stop_ids = [2, 7]

    def f(tokens, finished):
        hit = torch.isin(tokens, torch.tensor(stop_ids, device=tokens.device))  # guilty: a list
        return finished | hit

    tokens = torch.randint(0, 16, (4,), device=device)
    return f, (tokens, torch.zeros(4, dtype=torch.bool, device=device))


def stop_tokens_from_a_buffer(device):
    stop = torch.tensor([2, 7], device=device)

    def f(tokens, finished):
        return finished | (tokens[:, None] == stop).any(-1)

    tokens = torch.randint(0, 16, (4,), device=device)
    return f, (tokens, torch.zeros(4, dtype=torch.bool, device=device))


class HeavyHitters(nn.Module):
    """Evicts the key with the least attention; which one is decided on the host."""

    def __init__(self, device):
        super().__init__()
        self.keys = torch.randn(8, 4, device=device)
        self.scores = torch.zeros(8, device=device)

    @torch.no_grad()
    def forward(self, query, key):
        weights = (self.keys @ query).softmax(0)
        self.scores += weights
        _, victim = min(zip(self.scores.cpu(), range(8), strict=True))  # guilty: scores to the host
        self.keys[victim] = key
        return weights @ self.keys


def heavy_hitters_on_the_host(device):
    return HeavyHitters(device), (torch.randn(4, device=device), torch.randn(4, device=device))


class HeavyHittersOnDevice(HeavyHitters):
    @torch.no_grad()
    def forward(self, query, key):
        weights = (self.keys @ query).softmax(0)
        self.scores += weights
        victim = self.scores.argmin(keepdim=True)
        self.keys.index_copy_(0, victim, key[None])
        self.scores.index_fill_(0, victim, 0.0)
        return weights @ self.keys


def heavy_hitters_on_the_device(device):
    model = HeavyHittersOnDevice(device)
    return model, (torch.randn(4, device=device), torch.randn(4, device=device))


class SinkCache:
    """Attention sinks and a window; the slot of the next key is a number of the host."""

    sinks, window = 2, 6

    def __init__(self, device):
        self.keys = torch.zeros(self.sinks + self.window, 4, device=device)
        self.seen = 0

    def update(self, key):
        slot = self.seen
        if slot >= self.keys.shape[0]:
            slot = self.sinks + (self.seen - self.sinks) % self.window
        self.keys[slot].copy_(key)  # guilty: the slot at capture
        self.seen += 1  # guilty: the same
        return self.keys


def attention_sinks_of_the_host(device):
    cache = SinkCache(device)

    def f(query, key):
        keys = cache.update(key)
        return (keys @ query).softmax(0) @ keys

    return f, (torch.randn(4, device=device), torch.randn(4, device=device))


class SinkCacheOnDevice(SinkCache):
    def __init__(self, device):
        super().__init__(device)
        self.seen = torch.zeros(1, dtype=torch.long, device=device)

    def update(self, key):
        wrapped = self.sinks + (self.seen - self.sinks) % self.window
        slot = torch.where(self.seen < self.keys.shape[0], self.seen, wrapped)
        self.keys.index_copy_(0, slot, key[None])
        self.seen += 1
        return self.keys


def attention_sinks_of_the_device(device):
    cache = SinkCacheOnDevice(device)

    def f(query, key):
        keys = cache.update(key)
        return (keys @ query).softmax(0) @ keys

    return f, (torch.randn(4, device=device), torch.randn(4, device=device))


# --- adapters


class Adapter(nn.Module):
    def __init__(self, rank, device):
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, 8, device=device))
        self.b = nn.Parameter(torch.randn(8, rank, device=device))
        self.scaling = 16 / rank

    def delta(self):
        return self.b @ self.a * self.scaling


class AdaptedLinear(nn.Linear):
    """Merges its active adapter into the weight, as PEFT does, and unmerges the one before."""

    def __init__(self, device):
        super().__init__(8, 8, device=device)
        self.adapters = nn.ModuleDict({name: Adapter(2, device) for name in ("chat", "code")})
        self.merged = []

    def activate(self, name):
        while self.merged:
            self.weight.data -= self.adapters[self.merged.pop()].delta()
        self.weight.data += self.adapters[name].delta()
        self.merged.append(name)

    def requested(self):
        return "code" if self.merged == ["chat"] else "chat"  # guilty: the same

    @torch.no_grad()
    def forward(self, x):
        self.activate(self.requested())  # guilty: the adapter whose turn it was at capture
        return super().forward(x)


def adapters_merged_in_turn(device):
    return AdaptedLinear(device), (torch.randn(2, 8, device=device),)


class Unmerged(AdaptedLinear):
    """Merges for the call and unmerges after it: each call begins in the same state."""

    @torch.no_grad()
    def forward(self, x):
        saved = self.weight.clone()
        self.weight.data += self.adapters["chat"].delta()
        try:
            return functional.linear(x, self.weight, self.bias)
        finally:
            self.weight.data.copy_(saved)


def adapter_merged_for_the_call(device):
    return Unmerged(device), (torch.randn(2, 8, device=device),)


class AdapterSlots(nn.Module):
    """Adapters in slots of one tensor; the least recently used one is evicted on the host."""

    def __init__(self, device):
        super().__init__()
        self.slots = torch.randn(4, 8, 8, device=device)
        self.order = OrderedDict((slot, None) for slot in range(4))

    def slot(self):
        slot = next(iter(self.order))
        self.order.move_to_end(slot)  # guilty: the same
        return slot

    @torch.no_grad()
    def forward(self, x):
        return x @ self.slots[self.slot()]  # guilty: the slot least recently used at capture


def slot_of_an_adapter_is_evicted(device):
    return AdapterSlots(device), (torch.randn(2, 8, device=device),)


class GroupedAdapters(nn.Module):
    """Rows sorted by adapter, in segments, as punica does it with plain PyTorch."""

    def __init__(self, device):
        super().__init__()
        self.a = torch.randn(4, 8, 2, device=device)
        self.b = torch.randn(4, 2, 8, device=device)

    @torch.no_grad()
    def forward(self, x, ids):
        order = ids.argsort(stable=True)
        rows, sorted_ids = x[order], ids[order]
        low = torch.einsum("ni,nir->nr", rows, self.a[sorted_ids])
        delta = torch.einsum("nr,nro->no", low, self.b[sorted_ids])
        return x + torch.zeros_like(x).index_add_(0, order, delta)


def adapters_of_sorted_rows(device):
    ids = torch.randint(0, 4, (6,), device=device)
    return GroupedAdapters(device), (torch.randn(6, 8, device=device), ids)


class SegmentedAdapters(GroupedAdapters):
    @torch.no_grad()
    def forward(self, x, ids):
        found, sizes = ids.unique_consecutive(return_counts=True)  # guilty: a size by data
        return x + torch.repeat_interleave(self.a[found].sum(-1), sizes, dim=0)


def adapters_in_segments(device):
    ids = torch.tensor([0, 0, 1, 1, 1, 3], device=device)
    return SegmentedAdapters(device), (torch.randn(6, 8, device=device), ids)


# --- a context for each forward, as vLLM and SGLang have


@dataclasses.dataclass
class ForwardContext:
    num_tokens: int
    kind: str
    layers: dict = dataclasses.field(default_factory=dict)


_context = contextvars.ContextVar("forward_context")


class set_forward_context:  # noqa: N801
    def __init__(self, **settings):
        self.context = ForwardContext(**settings)

    def __enter__(self):
        self.token = _context.set(self.context)
        return self.context

    def __exit__(self, *error):
        _context.reset(self.token)


class ContextualLayer(nn.Module):
    def __init__(self, index, device):
        super().__init__()
        self.index, self.proj = index, nn.Linear(8, 8, device=device)

    def forward(self, x):
        context = _context.get()
        context.layers[self.index] = x.shape
        if context.kind == "decode":
            return self.proj(x[: context.num_tokens])
        return self.proj(x)


class ContextualModel(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.layers = nn.ModuleList(ContextualLayer(index, device) for index in range(2))

    @torch.no_grad()
    def forward(self, x):
        with set_forward_context(num_tokens=x.shape[0], kind="decode") as context:
            for layer in self.layers:
                x = layer(x)
            assert len(context.layers) == len(self.layers)
        return x


def context_of_each_forward(device):
    return ContextualModel(device), (torch.randn(3, 8, device=device),)


class GrowingContextModel(ContextualModel):
    """The number of tokens grows from call to call, as a batch of one request does."""

    context = ForwardContext(num_tokens=1, kind="decode")

    @torch.no_grad()
    def forward(self, x):
        token = _context.set(self.context)
        scale = 1.0 / math.sqrt(self.context.num_tokens)
        x = self.layers[0].proj(x) * scale  # guilty: the number of tokens at capture
        self.context.num_tokens += 1  # guilty: the same
        _context.reset(token)
        return x


def context_that_grows(device):
    return GrowingContextModel(device), (torch.randn(3, 8, device=device),)


# --- experts


class TopK(NamedTuple):
    weights: torch.Tensor
    ids: torch.Tensor


class Router(nn.Module):
    def __init__(self, device, experts=4, k=2):
        super().__init__()
        self.gate = nn.Linear(8, experts, bias=False, device=device)
        self.bias = torch.zeros(experts, device=device)
        self.k = k

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        ids = (scores + self.bias).topk(self.k, dim=-1).indices
        weights = scores.gather(-1, ids)
        return TopK(weights / weights.sum(-1, keepdim=True), ids)


class BiasBalanced(nn.Module):
    """Balances without a loss: the bias of each expert follows its load (DeepSeek-V3)."""

    def __init__(self, device):
        super().__init__()
        self.router = Router(device)
        self.experts = nn.Parameter(torch.randn(4, 8, 8, device=device), requires_grad=False)

    @torch.no_grad()
    def forward(self, x):
        weights, ids = self.router(x)
        load = torch.zeros(4, device=x.device).scatter_add_(
            0, ids.flatten(), torch.ones(ids.numel(), device=x.device)
        )
        self.router.bias += 0.001 * torch.sign(load.mean() - load)
        out = torch.einsum("td,tkde->tke", x, self.experts[ids])
        return (out * weights[..., None]).sum(1)


def experts_balanced_by_a_bias(device):
    return BiasBalanced(device), (torch.randn(6, 8, device=device),)


class ExpertCache(nn.Module):
    """Keeps the experts of the last tokens on the device, and offloads the others."""

    def __init__(self, device):
        super().__init__()
        self.router = Router(device, k=1)
        self.host = [torch.randn(8, 8) for _ in range(4)]
        self.resident = {}

    def fetch(self, index, device):
        if index not in self.resident:
            self.resident[index] = self.host[index].to(device)
        return self.resident[index]

    @torch.no_grad()
    def forward(self, x):
        index = self.router(x[:1]).ids.item()  # guilty: the expert is read on the host
        return x @ self.fetch(index, x.device)


def experts_fetched_on_demand(device):
    return ExpertCache(device), (torch.randn(2, 8, device=device),)


class OffloadedLayers(nn.Module):
    """Weights wait on the host, pageable, and visit the device for their layer."""

    def __init__(self, device):
        super().__init__()
        self.host = [torch.randn(8, 8) for _ in range(2)]

    @torch.no_grad()
    def forward(self, x):
        for weight in self.host:
            x = torch.tanh(x @ weight.to(x.device, non_blocking=True))  # guilty: pageable memory
        return x


def layers_offloaded_to_the_host(device):
    return OffloadedLayers(device), (torch.randn(2, 8, device=device),)


class LoadReport(nn.Module):
    """Notes how many tokens it saw; only a report outside of the step reads that."""

    def __init__(self, device):
        super().__init__()
        self.router = Router(device)
        self.seen = defaultdict(int)
        self.peak = 0

    @torch.no_grad()
    def forward(self, x):
        weights, ids = self.router(x)
        self.seen[tuple(x.shape)] += x.shape[0]
        self.peak = max(self.peak, sum(self.seen.values()))
        return weights.sum(-1) + ids.sum(-1)


def tokens_counted_for_a_report(device):
    return LoadReport(device), (torch.randn(6, 8, device=device),)


# --- samplers


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 0.7
    top_k: int = 4
    min_p: float = 0.05
    penalties: tuple = (1.1, 0.2)

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError("a temperature is positive")


class Processor:
    registry = {}  # noqa: RUF012

    def __init_subclass__(cls, name):
        cls.registry[name] = cls


class Temperature(Processor, name="temperature"):
    def __init__(self, params):
        self.params = params

    def __call__(self, logits):
        return logits / self.params.temperature


class MinP(Processor, name="min_p"):
    def __init__(self, params):
        self.params = params

    def __call__(self, logits):
        probabilities = logits.softmax(-1)
        bound = probabilities.amax(-1, keepdim=True) * self.params.min_p
        return logits.masked_fill(probabilities < bound, -torch.inf)


class TopKOnly(Processor, name="top_k"):
    def __init__(self, params):
        self.params = params

    def __call__(self, logits):
        least = logits.topk(self.params.top_k, dim=-1).values[..., -1:]
        return torch.where(logits < least, -torch.inf, logits)


def processors_of_a_registry(device):
    params = SamplingParams()
    chain = [kind(params) for _, kind in sorted(Processor.registry.items())]

    def f(logits):
        logits = functools.reduce(lambda value, process: process(value), chain, logits)
        return logits.argmax(-1)

    return f, (torch.randn(2, 16, device=device),)


class Sampler:
    """Parameters of the next request are taken from a heap by priority."""

    def __init__(self):
        self.requests = [(priority, 0.5 + 0.01 * priority) for priority in range(5000)]
        heapq.heapify(self.requests)

    def __call__(self, logits):
        _, temperature = heapq.heappop(self.requests)  # guilty: the same
        return (logits / temperature).softmax(-1)  # guilty: the temperature of one request


def temperature_of_the_next_request(device):
    return Sampler(), (torch.randn(2, 16, device=device),)


class Mirostat:
    """Holds the surprise of the samples at a target, with its bound on the host."""

    def __init__(self, tau=3.0, eta=0.1):
        self.tau, self.eta, self.mu = tau, eta, 2 * tau

    def __call__(self, logits):
        surprise = -logits.log_softmax(-1)
        kept = logits.masked_fill(surprise > self.mu, -torch.inf)
        token = kept.argmax(-1)
        error = surprise.gather(-1, token[:, None]).mean().item() - self.tau  # guilty: is read
        self.mu -= self.eta * error
        return token


def mirostat_on_the_host(device):
    return Mirostat(), (torch.randn(2, 16, device=device),)


class MirostatOnDevice(Mirostat):
    def __init__(self, device):
        super().__init__()
        self.mu = torch.full((), 2 * self.tau, device=device)

    def __call__(self, logits):
        surprise = -logits.log_softmax(-1)
        kept = torch.where(surprise > self.mu, -torch.inf, logits)
        token = kept.argmax(-1)
        error = surprise.gather(-1, token[:, None]).mean() - self.tau
        self.mu -= self.eta * error
        return token


def mirostat_on_the_device(device):
    return MirostatOnDevice(device), (torch.randn(2, 16, device=device),)


class DraftLength:
    """Drafts more tokens after a success: the length is a number of the host."""

    def __init__(self):
        self.length, self.up = 2, True

    def adapt(self):
        self.length += 1 if self.up else -1  # guilty: the same
        if self.length in (1, 6):
            self.up = not self.up  # guilty: the same


def drafts_of_a_changing_length(device):
    policy = DraftLength()
    head = torch.randn(8, 8, device=device)

    def f(hidden):
        total = torch.zeros_like(hidden)
        for _ in range(policy.length):  # guilty: the length at capture
            hidden = torch.tanh(hidden @ head)
            total += hidden  # guilty: the same
        policy.adapt()  # guilty: the same
        return total

    return f, (torch.randn(2, 8, device=device),)


def _tree(device):
    # As medusa does: the tree is known before, and the best path is gathered on the device.
    choices = [(0,), (1,), (0, 0), (0, 1), (1, 0)]
    parents = [0] + [1 + choices.index(path[:-1]) if len(path) > 1 else 0 for path in choices]
    draft = torch.randint(0, 2, (len(parents),), device=device)
    target = torch.randint(0, 2, (len(parents),), device=device)
    return torch.tensor(parents, device=device), max(map(len, choices)), (draft, target)


def tree_of_drafts_whose_root_is_set(device):
    parent, depth, inputs = _tree(device)

    def f(draft, target):
        ok = draft == target[parent]
        ok[0] = True  # guilty: a number for a single element is copied from the host
        for _ in range(depth):
            ok = ok & ok[parent]
        best = (ok * torch.arange(len(ok), device=ok.device)).argmax()
        return target.gather(0, best[None])

    return f, inputs


def tree_of_drafts_whose_root_is_filled(device):
    parent, depth, inputs = _tree(device)

    def f(draft, target):
        ok = draft == target[parent]
        ok[:1] = True
        for _ in range(depth):
            ok = ok & ok[parent]
        best = (ok * torch.arange(len(ok), device=ok.device)).argmax()
        return target.gather(0, best[None])

    return f, inputs


class Lookahead:
    """n-grams of what was generated, in a dict of the host."""

    def __init__(self):
        self.pool = defaultdict(lambda: deque(maxlen=3))
        self.last = 0

    def guess(self):
        return self.pool[self.last][-1] if self.pool[self.last] else (self.last + 1) % 16

    def note(self, token):
        self.pool[self.last].append(token)
        self.last = token  # guilty: the same


def guesses_from_a_pool_of_ngrams(device):
    lookahead = Lookahead()
    table = torch.randn(16, 8, device=device)

    def f(x):
        guess = lookahead.guess()
        lookahead.note((3 * guess + 1) % 16)  # guilty: the same
        return x + table[guess]  # guilty: the guess at capture

    return f, (torch.randn(8, device=device),)


# --- caches that are filled once


class RotaryCache:
    _instances = weakref.WeakValueDictionary()  # noqa: RUF012

    def __new__(cls, dim, base=10000.0):
        key = (dim, base)
        if (found := cls._instances.get(key)) is None:
            found = super().__new__(cls)
            found.tables = {}
            cls._instances[key] = found
        return found

    def __init__(self, dim, base=10000.0):
        self.dim, self.base = dim, base

    def __call__(self, length, like):
        key = (length, like.device, like.dtype)
        if key not in self.tables:
            steps = torch.arange(0, self.dim, 2, device=like.device)
            inverse = self.base ** (-steps / self.dim)
            angles = torch.arange(length, device=like.device)[:, None] * inverse
            self.tables[key] = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return self.tables[key]


class RotaryAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = RotaryCache(8)

    def forward(self, q):
        cos, sin = RotaryCache(8)(q.shape[-2], q)
        even, odd = q[..., ::2], q[..., 1::2]
        q = torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def rotary_tables_of_shared_instances(device):
    return RotaryAttention(), (torch.randn(1, 2, 4, 8, device=device),)


class ScaledRotary(nn.Module):
    """YaRN: which frequencies are interpolated follows from constants."""

    def __init__(self, dim=8, original=32, factor=4.0):
        super().__init__()
        self.dim, self.original, self.factor = dim, original, factor

    def _bound(self, rotations):
        return self.dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(1e4))

    def forward(self, x):
        low = max(math.floor(self._bound(32)), 0)
        high = min(math.ceil(self._bound(1)), self.dim - 1)
        steps = torch.arange(self.dim // 2, dtype=torch.float32, device=x.device)
        ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
        frequencies = 1e4 ** (-2 * steps / self.dim)
        frequencies = torch.lerp(frequencies, frequencies / self.factor, ramp)
        return x * frequencies.repeat(2) * (0.1 * math.log(self.factor) + 1)


def yarn_by_constants(device):
    return ScaledRotary(), (torch.randn(4, 8, device=device),)


class Workspace:
    """One buffer for all layers that grows to the largest request of the warm-up."""

    def __init__(self):
        self.buffer = None

    def get(self, *shape, like):
        wanted = math.prod(shape)
        if self.buffer is None or self.buffer.numel() < wanted:
            self.buffer = torch.empty(wanted, dtype=like.dtype, device=like.device)
        return self.buffer[:wanted].view(shape)


def workspace_for_all_layers(device):
    workspace = Workspace()
    small, large = torch.randn(8, 4, device=device), torch.randn(4, 16, device=device)

    def f(x):
        y = torch.mm(x, small, out=workspace.get(x.shape[0], 4, like=x)).clone()
        return torch.mm(y, large, out=workspace.get(x.shape[0], 16, like=x)).clone()

    return f, (torch.randn(2, 8, device=device),)


class GrowingWorkspace(Workspace):
    """Half again as large in every call, in case the next request is longer."""

    def __init__(self):
        super().__init__()
        self.size = 16

    def get(self, like):
        self.size += 8  # guilty: the same
        if self.buffer is None or self.buffer.numel() < self.size:
            self.buffer = torch.zeros(self.size, device=like.device)
        return self.buffer


def sum_over_a_growing_workspace(device):
    workspace = GrowingWorkspace()

    def f(x):
        buffer = workspace.get(x)
        buffer[: x.numel()] = x
        return buffer.add(1).mean() + buffer.sum() / buffer.numel()  # guilty: its size at capture

    return f, (torch.randn(8, device=device),)


class Requests:
    """Statistics of an engine: numbers that only its property reads."""

    def __init__(self):
        self.finished, self.tokens, self.started = 0, 0, time.monotonic()

    @property
    def throughput(self):
        return self.tokens / (time.monotonic() - self.started)

    def add(self, tokens):
        self.tokens += tokens
        self.finished += tokens // 4


def engine_keeps_statistics(device):
    requests = Requests()
    head = torch.randn(8, 16, device=device)

    def f(hidden):
        tokens = (hidden @ head).argmax(-1)
        requests.add(tokens.numel())
        return tokens

    return f, (torch.randn(4, 8, device=device),)


def pages_of_a_request_on_the_device(device):
    # Slots are computed from a block table on the device, as paged attention does.
    cache = torch.zeros(6, 4, 8, device=device)
    table = torch.tensor([[3, 0], [1, 5]], device=device)

    def f(key, positions):
        block = table.gather(1, (positions // 4)[:, None]).squeeze(1)
        cache.view(-1, 8).index_copy_(0, block * 4 + positions % 4, key)
        pages = cache[table].flatten(1, 2)
        seen = torch.arange(8, device=key.device) <= positions[:, None]
        scores = torch.einsum("bd,bld->bl", key, pages).masked_fill(~seen, -torch.inf)
        return torch.einsum("bl,bld->bd", scores.softmax(-1), pages)

    return f, (torch.randn(2, 8, device=device), torch.tensor([2, 6], device=device))

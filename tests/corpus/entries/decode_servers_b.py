"""Engines that decode: phases, tenants, caches, drafts, and what they keep on the host."""

import asyncio
import bisect
import contextvars
import copy
import dataclasses
import enum
import functools
import heapq
import itertools
import queue
import zlib
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

# --- the phases of an engine


class Phase(enum.Enum):
    PREFILL = enum.auto()
    DECODE = enum.auto()
    SAMPLE_AGAIN = enum.auto()


AFTER = {
    Phase.PREFILL: Phase.DECODE,
    Phase.DECODE: Phase.SAMPLE_AGAIN,
    Phase.SAMPLE_AGAIN: Phase.PREFILL,
}


class InterleavingEngine(nn.Module):
    """Runs one chunk of a prompt between two steps of decoding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64)
        self.register_buffer("summary", torch.zeros(1, 16))
        self.phase = Phase.PREFILL

    @torch.inference_mode()
    def forward(self, tokens):
        hidden = self.embed(tokens)
        if self.phase is Phase.PREFILL:  # guilty: the phase at capture
            self.summary.copy_(hidden.mean((0, 1))[None])
        elif self.phase is Phase.SAMPLE_AGAIN:  # guilty: the phase at capture
            hidden = hidden + self.summary[:, None]
        self.phase = AFTER[self.phase]  # guilty: the phase is kept on the host
        return self.head(hidden).argmax(-1)


def prompts_and_tokens_take_turns(device):
    torch.manual_seed(0)
    engine = InterleavingEngine().to(device).eval()
    return engine, (torch.randint(64, (2, 4), device=device),)


class TwoPhaseEngine(nn.Module):
    """The first call reads the prompt; every later one decodes."""

    def __init__(self, device):
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64)
        self.register_buffer("summary", torch.zeros(1, 16))
        self.phase = Phase.PREFILL
        self.prompt = torch.randint(64, (1, 12), device=device)

    @torch.inference_mode()
    def forward(self, token):
        match self.phase:
            case Phase.PREFILL:
                self.summary.copy_(self.embed(self.prompt).mean(1))
                self.phase = Phase.DECODE
            case Phase.DECODE:
                pass
            case other:
                raise AssertionError(other)
        return self.head(self.embed(token) + self.summary).softmax(-1)


def prompt_is_read_by_the_first_call(device):
    torch.manual_seed(0)
    engine = TwoPhaseEngine(device).to(device).eval()
    return engine, (torch.randint(64, (3,), device=device),)


# --- tenants


@dataclasses.dataclass
class Tenant:
    name: str
    weight: float
    down: torch.Tensor
    up: torch.Tensor
    virtual_time: float = 0.0


class FairServer:
    """Weighted fair queueing: the tenant that got least is served next."""

    def __init__(self, base, tenants):
        self.base = base
        self.tenants = {tenant.name: tenant for tenant in tenants}

    def pick(self):
        tenant = min(  # guilty: the tenant whose turn it is at capture
            self.tenants.values(), key=lambda t: (t.virtual_time, t.name)
        )
        tenant.virtual_time += 1.0 / tenant.weight  # guilty: counted on the host
        return tenant

    @torch.no_grad()
    def __call__(self, x):
        tenant = self.pick()
        return self.base(x) + x @ tenant.down @ tenant.up  # guilty: its adapter


def tenants_are_served_fairly(device):
    torch.manual_seed(0)
    base = nn.Linear(8, 8).to(device)
    tenants = [
        Tenant(name, weight, torch.randn(8, 2, device=device), torch.randn(2, 8, device=device))
        for name, weight in (("free", 1.0), ("team", 2.0), ("company", 4.0))
    ]
    return FairServer(base, tenants), (torch.randn(4, 8, device=device),)


class Canary:
    """Sends every eighth request, by a hash of its id, to the new model."""

    def __init__(self, stable, fresh):
        self.models = {"stable": stable, "canary": fresh}
        self.request = 0

    def route(self, request):
        is_chosen = zlib.crc32(b"%d" % request) % 8 == 0
        return "canary" if is_chosen else "stable"  # guilty: the number of the request at capture

    @torch.inference_mode()
    def __call__(self, x):
        name = self.route(self.request)  # guilty: the number of the request at capture
        self.request += 1  # guilty: counted on the host
        return self.models[name](x).softmax(-1)  # guilty: the model of the request at capture


def some_requests_go_to_the_canary(device):
    torch.manual_seed(0)
    stable, fresh = (nn.Linear(6, 5).to(device) for _ in range(2))
    return Canary(stable, fresh), (torch.randn(3, 6, device=device),)


_tenant = contextvars.ContextVar("tenant", default=0)


class TenantBias(nn.Module):
    def __init__(self, tenants=3, width=8):
        super().__init__()
        self.table = nn.Parameter(torch.randn(tenants, width), requires_grad=False)

    def forward(self, x):
        return x + self.table[_tenant.get()]  # guilty: the tenant at capture


def tenant_in_a_context_variable(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), TenantBias(), nn.GELU()).to(device).eval()

    @torch.no_grad()
    def serve(x):
        y = model(x)
        _tenant.set((_tenant.get() + 1) % 3)  # guilty: the next tenant
        return y

    return serve, (torch.randn(2, 8, device=device),)


def weights_of_each_tenant_by_functional_call(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4)).to(device).eval()
    tenants = {
        name: {
            key: value.detach() + 0.1 * torch.randn_like(value)
            for key, value in model.named_parameters()
        }
        for name in ("red", "blue")
    }

    @torch.no_grad()
    def serve(x):
        parts = x.chunk(len(tenants))
        outputs = [
            functional_call(model, weights, (part,))
            for part, weights in zip(parts, tenants.values(), strict=True)
        ]
        return torch.cat(outputs)

    return serve, (torch.randn(6, 8, device=device),)


def tenants_on_streams_of_their_own(device):
    torch.manual_seed(0)
    models = [nn.Linear(8, 8).to(device) for _ in range(3)]
    lanes = [torch.cuda.Stream(priority=p) for p in (-1, 0, 0)]
    done = [torch.cuda.Event() for _ in lanes]

    @torch.no_grad()
    def serve(x):
        main = torch.cuda.current_stream()
        ready = torch.cuda.Event()
        ready.record(main)
        outputs = []
        for model, lane, event, part in zip(models, lanes, done, x.chunk(3), strict=True):
            lane.wait_event(ready)
            with torch.cuda.stream(lane):
                outputs.append(model(part).relu())
                event.record(lane)
        for event in done:
            main.wait_event(event)
        return torch.cat(outputs)

    return serve, (torch.randn(6, 8, device=device),)


class AdapterRequests:
    """A batch of requests with a name each; when the list is empty, the base model answers."""

    def __init__(self, base, adapters, requests):
        self.base, self.adapters, self.requests = base, adapters, requests

    @torch.no_grad()
    def __call__(self, x):
        name = self.requests.pop(0) if self.requests else None  # guilty: the request at capture
        y = self.base(x)
        if name is not None:  # guilty: whether a request was left at capture
            down, up = self.adapters[name]
            y = y + x @ down @ up  # guilty: the adapter of the request at capture
        return y


def adapters_named_by_waiting_requests(device):
    torch.manual_seed(0)
    adapters = {
        name: (torch.randn(8, 2, device=device), torch.randn(2, 8, device=device))
        for name in ("sql", "poem", "mail")
    }
    requests = ["sql", "poem", "mail", "sql", "mail", "poem", "sql"]
    base = nn.Linear(8, 8).to(device)
    return AdapterRequests(base, adapters, requests), (torch.randn(2, 8, device=device),)


# --- caches of keys and values


class SlotCache(nn.Module):
    def __init__(self, slots=8, width=4):
        super().__init__()
        self.register_buffer("rows", torch.zeros(slots, width))
        self.taken = bytearray(slots)

    def allocate(self):
        slot = self.taken.find(0)  # guilty: the first free slot at capture
        if slot < 0:
            self.taken[:] = bytes(len(self.taken))
            slot = 0
        self.taken[slot] = 1  # guilty: the slots are marked on the host
        return slot

    def forward(self, x):
        self.rows[self.allocate()] = x.mean(0)  # guilty: the slot at capture
        return x + self.rows.sum(0)


def slots_marked_in_a_bytearray(device):
    torch.manual_seed(0)
    return SlotCache().to(device), (torch.randn(3, 4, device=device),)


class ScratchSlots(nn.Module):
    """Takes a slot for each row and gives all of them back."""

    def __init__(self, slots=8, width=4):
        super().__init__()
        self.register_buffer("rows", torch.zeros(slots, width))
        self.taken = bytearray(slots)

    def forward(self, x):
        held = []
        for row in x.unbind(0):
            slot = self.taken.find(0)
            self.taken[slot] = 1
            held.append(slot)
            self.rows[slot].copy_(row)
        y = self.rows[: len(held)].cumsum(0)
        for slot in held:
            self.taken[slot] = 0
        return y


def slots_are_given_back_in_the_call(device):
    torch.manual_seed(0)
    return ScratchSlots().to(device), (torch.randn(3, 4, device=device),)


@dataclasses.dataclass(frozen=True)
class AttentionMetadata:
    seq_lens: torch.Tensor
    scale: float


class MetadataRunner:
    def __init__(self, device, length=64):
        self.keys = torch.randn(2, length, 8, device=device)
        self.meta = AttentionMetadata(torch.ones(2, dtype=torch.long, device=device), 8**-0.5)

    @torch.no_grad()
    def __call__(self, q):
        scores = torch.einsum("bd,bld->bl", q, self.keys) * self.meta.scale
        places = torch.arange(self.keys.shape[1], device=q.device)
        scores = scores.masked_fill(places >= self.meta.seq_lens[:, None], -1e9)
        self.meta = dataclasses.replace(  # guilty: the next lengths are another tensor
            self.meta,
            seq_lens=self.meta.seq_lens + 1,  # guilty: a new tensor
        )
        return torch.einsum("bl,bld->bd", scores.softmax(-1), self.keys)


def lengths_in_replaced_metadata(device):
    torch.manual_seed(0)
    return MetadataRunner(device), (torch.randn(2, 8, device=device),)


class PlannedAttention:
    """Plans with a copy of the lengths on the host, as kernels with a host-side planner want it."""

    def __init__(self, device, length=64):
        self.keys = torch.randn(2, length, 8, device=device)
        self.lens = torch.tensor([3, 5], device=device)
        self.lens_cpu = torch.tensor([3, 5])

    @torch.no_grad()
    def __call__(self, q):
        longest = int(self.lens_cpu.max())  # guilty: the longest at capture
        keys = self.keys[:, :longest]  # guilty: as many keys as at capture
        places = torch.arange(longest, device=q.device)  # guilty: as many as at capture
        scores = torch.einsum("bd,bld->bl", q, keys)
        scores = scores.masked_fill(places >= self.lens[:, None], -1e9)
        self.lens += 1
        self.lens_cpu += 1  # guilty: counted on the host
        return torch.einsum("bl,bld->bd", scores.softmax(-1), keys)


def lengths_kept_twice(device):
    torch.manual_seed(0)
    return PlannedAttention(device), (torch.randn(2, 8, device=device),)


class PageSwapper:
    """Moves a cold page to the memory of the host before it is written again."""

    def __init__(self, device, pages=4, size=8):
        self.pages = torch.zeros(pages, size, device=device)
        self.host = torch.zeros(pages, size)

    @torch.no_grad()
    def __call__(self, x):
        self.host[2].copy_(self.pages[2], non_blocking=True)  # guilty: the memory is not pinned
        self.pages[2].copy_(x.mean(0))
        return x + self.pages[2]


def cold_page_leaves_for_the_host(device):
    torch.manual_seed(0)
    return PageSwapper(device), (torch.randn(3, 8, device=device),)


class CopyOnWrite:
    """Blocks that two sequences share are copied once, when one of them is about to write."""

    def __init__(self, device):
        self.blocks = torch.randn(6, 4, device=device)
        self.pending = deque([(0, 4), (1, 5)])

    @torch.no_grad()
    def __call__(self, x):
        while self.pending:
            source, target = self.pending.popleft()
            self.blocks[target].copy_(self.blocks[source])
        self.blocks[4:].mul_(0.9).add_(x.mean(0))
        return x @ self.blocks.T


def shared_blocks_are_copied_once(device):
    torch.manual_seed(0)
    return CopyOnWrite(device), (torch.randn(3, 4, device=device),)


class Node:
    def __init__(self, blocks):
        self.blocks = blocks
        self.children = {}
        self.last_access = 0


class RadixCache:
    """Prefixes by their tokens; the clock is for an eviction that is done elsewhere."""

    def __init__(self, device):
        self.pages = torch.randn(8, 4, device=device)
        self.root = Node([])
        self.clock = itertools.count(1)

    def insert(self, tokens, blocks):
        node = self.root
        for token, block in zip(tokens, blocks, strict=True):
            node = node.children.setdefault(token, Node([*node.blocks, block]))

    def match(self, tokens):
        node, now = self.root, next(self.clock)
        for token in tokens:
            if token not in node.children:
                break
            node = node.children[token]
            node.last_access = now
        return node.blocks


def prefix_tree_notes_the_last_access(device):
    torch.manual_seed(0)
    cache = RadixCache(device)
    cache.insert((5, 7, 9), (0, 3, 6))
    cache.insert((5, 8), (0, 2))

    @torch.no_grad()
    def attend(q):
        prefix = torch.stack([cache.pages[block] for block in cache.match((5, 7, 9, 11))])
        return (q @ prefix.T).softmax(-1) @ prefix

    return attend, (torch.randn(2, 4, device=device),)


class Latent(nn.Module):
    """Attention over compressed keys, with the up-projections absorbed."""

    def __init__(self, width=16, rank=6, heads=2, length=32):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.q = nn.Linear(width, heads * rank, bias=False)
        self.out = nn.Linear(heads * rank, width, bias=False)
        self.heads, self.rank = heads, rank
        self.register_buffer("latents", torch.zeros(length, rank), persistent=False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.long), persistent=False)

    @torch.no_grad()
    def forward(self, x):
        self.latents.index_copy_(0, self.position, self.down(x))
        seen = torch.arange(len(self.latents), device=x.device) <= self.position
        q = self.q(x).view(self.heads, self.rank)
        scores = (q @ self.latents.T / self.rank**0.5).masked_fill(~seen, -torch.inf)
        y = self.out((scores.softmax(-1) @ self.latents).flatten())
        self.position += 1
        self.position %= len(self.latents)
        return y


def latents_are_written_by_a_device_position(device):
    torch.manual_seed(0)
    return Latent().to(device), (torch.randn(1, 16, device=device),)


def prompt_is_compressed_by_an_observation_window(device):
    """The keys that the last tokens look at most are kept, and the last tokens."""
    torch.manual_seed(0)
    keep, window = 6, 4

    @torch.no_grad()
    def compress(q, k, v):
        past = k.shape[2] - window
        scores = q[:, :, -window:] @ k.mT / k.shape[-1] ** 0.5
        votes = scores.softmax(-1)[..., :past].sum(2)
        votes = functional.avg_pool1d(votes, 3, stride=1, padding=1)
        kept = votes.topk(keep, -1).indices.sort(-1).values[..., None].expand(-1, -1, -1, 8)
        return tuple(
            torch.cat([each[:, :, :past].gather(2, kept), each[:, :, past:]], 2) for each in (k, v)
        )

    return compress, tuple(torch.randn(1, 2, 20, 8, device=device) for _ in range(3))


# --- drafts


class Rollback:
    """Drafts write into the state of the target; what is rejected is taken back."""

    def __init__(self, device, in_place):
        self.cell = nn.Linear(6, 6).to(device)
        self.state = torch.zeros(2, 6, device=device)
        self.in_place = in_place

    @torch.no_grad()
    def __call__(self, x):
        before = self.state.clone()  # guilty: reads the tensor of the capture
        for _ in range(3):
            self.state.mul_(0.5).add_(self.cell(x).tanh())
        accepted = (self.state[:, :1] > before[:, :1]).to(x.dtype)
        after = self.state * accepted + before * (1 - accepted)
        if self.in_place:
            self.state.copy_(after)
        else:
            self.state = after  # guilty: the next call reads another tensor
        return after


def rejected_drafts_bring_back_another_tensor(device):
    torch.manual_seed(0)
    return Rollback(device, False), (torch.randn(2, 6, device=device),)


def rejected_drafts_bring_back_the_values(device):
    torch.manual_seed(0)
    return Rollback(device, True), (torch.randn(2, 6, device=device),)


class AdaptiveDraft:
    """The draft becomes longer after each success, up to a limit."""

    def __init__(self, device, first, limit):
        self.draft = nn.Linear(6, 6).to(device)
        self.length, self.limit = first, limit

    @torch.no_grad()
    def __call__(self, x):
        y = x
        for _ in range(self.length):
            y = self.draft(y).tanh()
        self.length = min(self.length + 1, self.limit)
        return y


def draft_reaches_its_limit_at_once(device):
    torch.manual_seed(0)
    return AdaptiveDraft(device, 2, 4), (torch.randn(2, 6, device=device),)


def draft_works_on_a_copy_of_the_cache(device):
    torch.manual_seed(0)
    cell = nn.GRUCell(4, 6).to(device)
    cache = {"h": torch.zeros(2, 6, device=device), "steps": 0}

    @torch.no_grad()
    def propose(x):
        trial = copy.deepcopy(cache)
        for _ in range(3):
            trial["h"] = cell(x, trial["h"])
            trial["steps"] += 1
        cache["h"].copy_(cell(x, cache["h"]))
        return trial["h"] / trial["steps"]

    return propose, (torch.randn(2, 4, device=device),)


class TrackedAcceptance(nn.Module):
    """A threshold that follows the acceptance; the author feared that the average could not be
    captured."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 6)
        self.register_buffer("rate", torch.full((), 0.3))

    @torch.no_grad()
    def forward(self, x):
        p = self.head(x).sigmoid()
        accepted = (p > self.rate).float()
        if not torch.cuda.is_current_stream_capturing():  # guilty: replays do not update the rate
            self.rate.lerp_(accepted.mean(), 0.1)
        return accepted * p


def acceptance_is_not_tracked_while_capturing(device):
    torch.manual_seed(0)
    return TrackedAcceptance().to(device), (torch.randn(3, 6, device=device),)


class LongestOnTheHost:
    """Reads the longest length, but takes that of the requests of the warm-up where it cannot."""

    def __init__(self, device):
        self.keys = torch.randn(2, 16, 8, device=device)
        self.lens = torch.tensor([3, 5], device=device)

    @torch.no_grad()
    def __call__(self, q):
        if torch.cuda.is_current_stream_capturing():  # guilty: other keys than in eager mode
            longest = 4
        else:
            longest = int(self.lens.max())
        places = torch.arange(longest, device=q.device)
        scores = torch.einsum("bd,bld->bl", q, self.keys[:, :longest])
        scores = scores.masked_fill(places >= self.lens[:, None], -torch.inf)
        return torch.einsum("bl,bld->bd", scores.softmax(-1), self.keys[:, :longest])


def longest_is_guessed_while_capturing(device):
    torch.manual_seed(0)
    return LongestOnTheHost(device), (torch.randn(2, 8, device=device),)


# --- loops of a server


class TokenStream:
    """An engine whose answer is an async generator, driven by a loop of its own."""

    def __init__(self, cell, hidden, in_place):
        self.cell, self.hidden, self.in_place = cell, hidden, in_place
        self.inbox = [None]
        self.loop = asyncio.new_event_loop()
        self.tokens = self.generate()

    async def generate(self):
        hidden = self.hidden
        while True:
            new = self.cell(self.inbox[0], hidden)  # guilty: reads the state of the capture
            if self.in_place:
                hidden.copy_(new)
            else:
                hidden = new  # guilty: the next token starts from another tensor
            await asyncio.sleep(0)
            yield hidden * 2

    @torch.no_grad()
    def __call__(self, x):
        self.inbox[0] = x
        return self.loop.run_until_complete(anext(self.tokens))


def stream_of_tokens_rebinds_its_state(device):
    torch.manual_seed(0)
    cell = nn.GRUCell(4, 6).to(device)
    stream = TokenStream(cell, torch.zeros(2, 6, device=device), False)
    return stream, (torch.randn(2, 4, device=device),)


def stream_of_tokens_writes_its_state(device):
    torch.manual_seed(0)
    cell = nn.GRUCell(4, 6).to(device)
    stream = TokenStream(cell, torch.zeros(2, 6, device=device), True)
    return stream, (torch.randn(2, 4, device=device),)


class Batcher:
    """Pads to the bucket of however many requests wait."""

    BUCKETS = (1, 2, 4, 8)

    def __init__(self, model):
        self.model = model
        self.waiting = queue.SimpleQueue()
        self.arrivals = itertools.cycle((3, 1, 0, 2, 5))

    @torch.no_grad()
    def __call__(self, rows):
        for _ in range(next(self.arrivals)):  # guilty: as many as arrived at capture
            self.waiting.put(object())
        size = min(self.waiting.qsize(), len(rows))  # guilty: as many as waited at capture
        bucket = self.BUCKETS[bisect.bisect_left(self.BUCKETS, size)] if size else 1
        for _ in range(size):
            self.waiting.get()
        out = torch.zeros_like(rows)
        out[:bucket] = self.model(rows[:bucket])  # guilty: the bucket at capture
        out[size:] = 0.0  # guilty: the number of requests at capture
        return out


def requests_are_counted_by_a_queue(device):
    torch.manual_seed(0)
    return Batcher(nn.Linear(4, 4).to(device)), (torch.randn(8, 4, device=device),)


def requests_leave_a_heap_by_priority(device):
    torch.manual_seed(0)
    heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
    priorities = {0: 5, 1: 1, 2: 3}

    @torch.no_grad()
    def serve(x):
        waiting = [(priority, index) for index, priority in priorities.items()]
        heapq.heapify(waiting)
        y = x
        while waiting:
            _, index = heapq.heappop(waiting)
            y = heads[index](y).relu()
        return y

    return serve, (torch.randn(2, 4, device=device),)


class LoadController:
    """Additive increase, multiplicative decrease of the width of an embedding."""

    def __init__(self, model, smallest=8, largest=32):
        self.model = model
        self.width, self.smallest, self.largest = smallest, smallest, largest

    def adapt(self):
        wider = self.width + 4  # guilty: the width at capture
        self.width = wider if wider <= self.largest else self.largest // 2  # guilty: on the host

    @torch.inference_mode()
    def __call__(self, x):
        full = self.model(x)
        short = functional.normalize(full[:, : self.width], dim=-1)  # guilty: the width at capture
        self.adapt()
        return short @ short.T


def width_of_an_embedding_follows_the_load(device):
    torch.manual_seed(0)
    return LoadController(nn.Linear(6, 32).to(device)), (torch.randn(4, 6, device=device),)


class GrowingIndex:
    """Negatives are drawn among the documents that were added so far."""

    def __init__(self, device, capacity=512):
        self.documents = torch.randn(capacity, 8, device=device)
        self.size = 16

    @torch.no_grad()
    def __call__(self, queries):
        drawn = torch.randint(self.size, (6,), device=queries.device)  # guilty: size at capture
        self.size = min(self.size + 4, len(self.documents))  # guilty: counted on the host
        return queries @ self.documents[drawn].T


def negatives_drawn_from_a_growing_index(device):
    torch.manual_seed(0)
    return GrowingIndex(device), (torch.randn(2, 8, device=device),)


# --- what is sent to the host and comes from it


class Outbox:
    """Two pinned buffers: the host reads one while the device fills the other."""

    def __init__(self, head, device):
        self.head = head
        self.buffers = [torch.zeros(2).pin_memory() for _ in range(2)]
        self.turn = 0

    @torch.no_grad()
    def __call__(self, x):
        score, token = self.head(x).log_softmax(-1).max(-1)
        self.buffers[self.turn].copy_(score, non_blocking=True)  # guilty: the buffer at capture
        self.turn ^= 1  # guilty: the turn is kept on the host
        return token


def answers_leave_by_two_buffers_in_turn(device):
    torch.manual_seed(0)
    return Outbox(nn.Linear(4, 9).to(device), device), (torch.randn(2, 4, device=device),)


class GrammarMask:
    """The tokens that a grammar allows, written into pinned memory by NumPy."""

    def __init__(self, device, vocabulary=16):
        self.pinned = torch.zeros(vocabulary, dtype=torch.bool).pin_memory()
        self.view = self.pinned.numpy()
        self.mask = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.state = 0

    def advance(self):
        self.view[:] = False  # guilty: a replay does not write the mask
        self.view[np.arange(self.state, 16, 4)] = True  # guilty: a replay does not write the mask
        self.state = (self.state + 1) % 4  # guilty: the state of the grammar is on the host

    @torch.no_grad()
    def __call__(self, logits):
        self.advance()
        self.mask.copy_(self.pinned, non_blocking=True)  # guilty: what the host wrote at capture
        return logits.masked_fill(~self.mask, -torch.inf).softmax(-1)


def grammar_fills_a_pinned_mask(device):
    torch.manual_seed(0)
    return GrammarMask(device), (torch.randn(2, 16, device=device),)


class BlockTable:
    """Staged for each step from lists, which do not change while a request is running."""

    def __init__(self, device):
        self.rows = [[0, 2, 5], [1, 3, 4]]
        self.staging = torch.zeros(2, 3, dtype=torch.long).pin_memory()
        self.table = torch.zeros(2, 3, dtype=torch.long, device=device)
        self.pages = torch.randn(6, 4, device=device)

    @torch.no_grad()
    def __call__(self, q):
        self.staging.copy_(torch.tensor(self.rows))
        self.table.copy_(self.staging, non_blocking=True)
        keys = self.pages[self.table]
        return torch.einsum("bd,bpd->bp", q, keys).softmax(-1)


def block_table_is_staged_in_each_step(device):
    torch.manual_seed(0)
    return BlockTable(device), (torch.randn(2, 4, device=device),)


@functools.cache
def _encode(text, device):
    return torch.tensor([byte % 64 for byte in text.encode()], device=device)


def system_prompt_is_tokenized_once(device):
    torch.manual_seed(0)
    embed = nn.Embedding(64, 8).to(device)

    @torch.no_grad()
    def serve(tokens):
        prompt = embed(_encode("You are a helpful assistant.", str(device)))
        return torch.cat([prompt.expand(len(tokens), -1, -1), embed(tokens)], 1).mean(1)

    return serve, (torch.randint(64, (2, 5), device=device),)

"""Runtimes and pipelines by hand: state spaces, merged tokens, sounds, graphs, quantization."""

import dataclasses
import io
import itertools
import math
import operator
import warnings
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

# --- state spaces and caches


@dataclass
class InferenceParams:
    seqlen_offset: int = 0
    states: dict[int, torch.Tensor] = field(default_factory=dict)


class ShiftedConv(nn.Module):
    """A causal convolution that keeps its last inputs in a ring."""

    def __init__(self, index, device):
        super().__init__()
        self.index = index
        self.taps = nn.Parameter(torch.randn(4, 6, device=device))

    def forward(self, u, params):
        ring = params.states.setdefault(self.index, torch.zeros(4, 6, device=u.device))
        ring[params.seqlen_offset % 4] = u  # guilty: the place of the capture
        return (ring * self.taps).sum(0)


class SmallMamba(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.layers = nn.ModuleList(ShiftedConv(index, device) for index in range(2))
        self.params = InferenceParams()

    @torch.no_grad()
    def forward(self, u):
        for layer in self.layers:
            u = layer(u, self.params).tanh()
        self.params.seqlen_offset += 1  # guilty: the same
        return u


def ring_of_a_convolution(device):
    return SmallMamba(device), (torch.randn(6, device=device),)


class RolledConv(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(4, 6, device=device))
        self.register_buffer("state", torch.zeros(4, 6, device=device))

    @torch.no_grad()
    def forward(self, u):
        self.state.copy_(torch.roll(self.state, shifts=-1, dims=0))
        self.state[-1] = u
        return (self.state * self.taps).sum(0)


def convolution_rolls_its_state(device):
    return RolledConv(device), (torch.randn(6, device=device),)


def chunked_scan_with_carries(device):
    decay = torch.rand(8, device=device)

    def scan(u):
        logs = decay.log().expand(4, 8).cumsum(0)
        chunks, carry = [], torch.zeros(8, device=device)
        for chunk in u.split(4):
            inner = torch.cumsum(chunk * torch.exp(-logs), 0) * torch.exp(logs)
            chunks.append(inner + carry * torch.exp(logs))
            carry = chunks[-1][-1]
        return torch.cat(chunks)

    return scan, (torch.randn(12, 8, device=device),)


class Lease:
    """A block of a pool; who drops it waits until the device is done with it."""

    def __init__(self, block):
        self.block = block

    def __del__(self):
        torch.cuda.synchronize()  # guilty: waits for the device


def lease_ends_with_a_wait(device):
    block = torch.empty(8, device=device)

    def step(x):
        lease = Lease(block)
        lease.block.copy_(x)
        y = lease.block * 2
        del lease  # guilty: the same
        return y

    return step, (torch.randn(8, device=device),)


class ReturnedBlock:
    def __init__(self, pool):
        self.pool, self.block = pool, pool.pop()

    def __del__(self):
        self.pool.append(self.block)


def block_returns_to_its_pool(device):
    pool = [torch.zeros(8, device=device) for _ in range(3)]

    def step(x):
        lease = ReturnedBlock(pool)
        lease.block.copy_(x)
        return lease.block * 2

    return step, (torch.randn(8, device=device),)


def cumulative_lengths_of_a_list(device):
    lengths = [3, 1, 4]

    def pooled(x):
        ends = torch.tensor([*itertools.accumulate(lengths)], device=device)  # guilty: a list
        total = functional.pad(x.cumsum(0), (0, 0, 1, 0))
        starts = functional.pad(ends[:-1], (1, 0))
        return total[ends] - total[starts]

    return pooled, (torch.randn(8, 4, device=device),)


def mask_of_blocks_from_lengths(device):
    lengths = (3, 1, 4)

    def attend(q):
        mask = torch.block_diag(*(torch.ones(n, n, device=device) for n in lengths)).bool()
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    return attend, (torch.randn(1, 2, 8, 8, device=device),)


# --- merging of tokens


def bipartite(metric, r):
    a, b = functional.normalize(metric, dim=-1).unflatten(1, (-1, 2)).unbind(2)
    node_max, node_idx = (a @ b.mT).max(-1)
    edges = node_max.argsort(-1, descending=True)
    merged, kept = edges[:, :r], edges[:, r:].sort(-1)[0]
    target = node_idx.gather(-1, merged)

    def merge(x):
        c = x.shape[-1]
        src, dst = x.unflatten(1, (-1, 2)).unbind(2)
        rest = src.gather(1, kept[..., None].expand(-1, -1, c))
        moved = src.gather(1, merged[..., None].expand(-1, -1, c))
        dst = dst.scatter_reduce(1, target[..., None].expand(-1, -1, c), moved, reduce="mean")
        return torch.cat([rest, dst], 1)

    return merge


class MergingBlock(nn.Module):
    def __init__(self, info, device):
        super().__init__()
        self.info, self.proj = info, nn.Linear(8, 8, device=device)

    def forward(self, x):
        x = x + self.proj(x)
        return bipartite(x, self.info["r"].pop(0))(x)


class MergingModel(nn.Module):
    """As the patch for vision transformers does it: each forward fills the list again."""

    def __init__(self, device):
        super().__init__()
        self.info = {"r": []}
        self.blocks = nn.Sequential(*(MergingBlock(self.info, device) for _ in range(2)))

    @torch.no_grad()
    def forward(self, x):
        self.info["r"] = [2, 2]
        return self.blocks(x)


def tokens_merge_by_a_refilled_list(device):
    return MergingModel(device), (torch.randn(2, 16, 8, device=device),)


class FadingMerge(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.r = [1 + n % 3 for n in range(1000)]
        self.proj = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def forward(self, x):
        r = self.r.pop()  # guilty: the same
        x = x + self.proj(x)
        return bipartite(x, r)(x).mean(1)  # guilty: the number that was last in the list


def tokens_merge_by_a_list_that_shrinks(device):
    return FadingMerge(device), (torch.randn(2, 16, 8, device=device),)


# --- sounds and images


def mel_filters_are_checked(device):
    spread = torch.linspace(0, 8000, 33, device=device)
    points = torch.linspace(0, 8000, 10, device=device)

    def filters(power):
        slopes = points[None] - spread[:, None]
        width = points.diff()
        down, up = -slopes[:, :-2] / width[:-1], slopes[:, 2:] / width[1:]
        bank = torch.minimum(down, up).clamp(min=0)
        if (bank.max(dim=0).values == 0.0).any():  # guilty: a warning about empty filters
            warnings.warn("at least one mel filter has only zeros", stacklevel=2)
        return power @ bank

    return filters, (torch.rand(5, 33, device=device),)


def decibels_below_the_peak(device):
    def f(power):
        db = 10 * torch.log10(power.clamp(min=1e-10))
        return db - 10 * math.log10(max(1e-10, power.max()))  # guilty: compares on the host

    return f, (torch.rand(5, 33, device=device),)


def decibels_above_a_floor(device):
    def f(power, amin=1e-10, ref=1.0, top=80.0):
        db = 10 * torch.log10(power.clamp(min=amin)) - 10 * math.log10(max(amin, ref))
        return torch.max(db, db.amax((-2, -1), keepdim=True) - top)

    return f, (torch.rand(2, 5, 33, device=device),)


def phase_vocoder(device):
    def stretch(spec, rate=1.25, hop=4):
        advance = torch.linspace(0, math.pi * hop, spec.shape[-2], device=device)[..., None]
        steps = torch.arange(0, spec.shape[-1], rate, device=device)
        alphas = steps % 1.0
        spec = functional.pad(spec, [0, 2])
        first, second = (spec.index_select(-1, (steps + n).long()) for n in (0, 1))
        phase = second.angle() - first.angle() - advance
        phase = phase - 2 * math.pi * torch.round(phase / (2 * math.pi)) + advance
        total = torch.cumsum(torch.cat([spec[..., :1].angle(), phase[..., :-1]], -1), -1)
        return torch.polar(alphas * second.abs() + (1 - alphas) * first.abs(), total)

    return stretch, (torch.randn(9, 10, dtype=torch.complex64, device=device),)


class Rotor(nn.Module):
    """Shifts the phase a bit further in each call."""

    def __init__(self):
        super().__init__()
        self.rotor = 1 + 0j

    def forward(self, spectrum):
        self.rotor *= 0.6 + 0.8j  # guilty: the same
        return spectrum * self.rotor  # guilty: the phase of the capture


def rotor_turns_on_the_host(device):
    return Rotor(), (torch.randn(8, dtype=torch.complex64, device=device),)


def position_embedding_is_resampled(device):
    table = nn.Parameter(torch.randn(1, 17, 8, device=device))

    def embed(patches):
        side = int(math.sqrt(patches.shape[1]))
        old = math.isqrt(table.shape[1] - 1)
        prefix, grid = table[:, :1], table[:, 1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
        grid = functional.interpolate(grid, size=(side, side), mode="bilinear", antialias=True)
        grid = grid.permute(0, 2, 3, 1).flatten(1, 2)
        return torch.cat([prefix.expand(len(patches), -1, -1), patches + grid], 1)

    return embed, (torch.randn(2, 36, 8, device=device),)


# --- graphs of atoms


def pooled_graphs_of_a_batch(device):
    batch = torch.tensor([0, 0, 1, 1, 1, 2], device=device)

    def pool(x):
        graphs = int(operator.itemgetter(-1)(batch)) + 1  # guilty: the number of graphs
        total = x.new_zeros(graphs, x.shape[1]).index_add_(0, batch, x)
        return total / torch.bincount(batch, minlength=graphs)[:, None]  # guilty: bincount waits

    return pool, (torch.randn(6, 4, device=device),)


def neighbours_by_distance(device):
    def f(positions, features, k=3):
        distance = torch.cdist(positions, positions)
        distance.fill_diagonal_(math.inf)
        near = distance.topk(k, largest=False)
        messages = features[near.indices] * torch.exp(-near.values)[..., None]
        return features + messages.amax(1)

    return f, (torch.randn(7, 3, device=device), torch.randn(7, 5, device=device))


# --- quantization


def dead_columns_on_the_diagonal(device):
    def prepare(hessian, weight):
        dead = torch.diag(hessian) == 0
        hessian = hessian.clone()
        hessian[dead, dead] = 1  # guilty: indices of a mask
        return weight @ hessian

    hessian = torch.eye(5, device=device) * 3
    hessian[2, 2] = 0
    return prepare, (hessian, torch.randn(5, 5, device=device))


def dead_columns_are_zeroed(device):
    def prepare(hessian, weight):
        dead = torch.diag(hessian) == 0
        weight = weight.clone()
        weight[:, dead] = 0
        return weight @ hessian

    hessian = torch.eye(5, device=device) * 3
    hessian[2, 2] = 0
    return prepare, (hessian, torch.randn(5, 5, device=device))


def rotated_by_hadamard(device):
    def transform(x):
        n, h, y = x.shape[-1], 1, x
        while h < n:
            y = y.unflatten(-1, (n // (2 * h), 2, h))
            y = torch.stack((y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]), -2)
            y, h = y.flatten(-3), h * 2
        low, high = (y / n**0.5).aminmax(dim=-1, keepdim=True)
        scale = (high - low).clamp(min=1e-6) / 15
        return ((y / n**0.5 - low) / scale).round().clamp(0, 15) * scale + low

    return transform, (torch.randn(3, 16, device=device),)


class CalibratingLinear(nn.Module):
    """Its step is the sum over the batches that it has seen."""

    def __init__(self, device):
        super().__init__()
        self.lin = nn.Linear(8, 8, device=device)
        self.seen = defaultdict(list)

    @torch.no_grad()
    def forward(self, x):
        self.seen[x.dtype].append(x.abs().amax())
        scale = torch.stack(self.seen[x.dtype]).sum() / 7  # guilty: the list of the capture
        return self.lin((x / scale).round().clamp(-7, 7) * scale)


def range_over_all_batches_seen(device):
    return CalibratingLinear(device), (torch.randn(4, 8, device=device),)


# --- what a runtime reports


def metrics_of_one_element_go_to_the_host(device):
    net = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def step(x):
        y = net(x)
        report = {"y": y, "stats": {"mean": y.mean(), "peak": y.amax()}}
        return pytree.tree_map(lambda t: t.cpu() if t.dim() == 0 else t, report)  # guilty: copies

    return step, (torch.randn(4, 8, device=device),)


def metrics_are_mapped_on_the_device(device):
    net = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def step(x):
        y = net(x)
        report = {"y": y, "stats": {"mean": y.mean(), "peak": y.amax()}}
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), report)

    return step, (torch.randn(4, 8, device=device),)


def tensor_is_saved_in_memory(device):
    def step(x):
        y = x.softmax(-1)
        with io.BytesIO() as file:
            torch.save({"y": y}, file)  # guilty: copies to the host
            size = file.tell()
        return y if size > 0 else x

    return step, (torch.randn(4, 8, device=device),)


def tokens_by_a_method_caller(device):
    read = operator.methodcaller("tolist")
    ban = {3, 5}

    def step(logits):
        first = logits.argmax(-1)
        banned = [row for row, token in enumerate(read(first)) if token in ban]  # guilty: reads
        return logits * (0.5 if banned else 1.0)

    return step, (torch.randn(4, 8, device=device),)


@dataclass(slots=True)
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] | None = None


def output_is_replaced_and_compared_by_identity(device):
    net = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def step(x):
        out = Output(net(x), hidden=(x,))
        other = dataclasses.replace(out, hidden=(*out.hidden, out.logits))
        if x in other.hidden and other.hidden.index(x) == 0:
            return other.logits + x
        return other.logits

    return step, (torch.randn(4, 8, device=device),)


def best_row_is_looked_up_by_equality(device):
    net = nn.Linear(8, 8, device=device)

    @torch.no_grad()
    def step(x):
        scores = [row.mean() for row in net(x)]
        best = torch.stack(scores).max()
        return x * (1 + scores.index(best))  # guilty: compares elements on the host

    return step, (torch.randn(4, 8, device=device),)

"""What layers and decoders of speech, search and tracking keep between their calls."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import functools
import itertools
import math
import weakref
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

# Mixture of experts whose experts come from a registry.
EXPERTS: dict[str, type[nn.Module]] = {}


def expert(name):
    def register(cls):
        EXPERTS[name] = cls
        return cls

    return register


class Kind(enum.Enum):
    GATED = "gated"
    PLAIN = "plain"


@expert(Kind.GATED.value)
class Gated(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(d, d) for _ in range(3))

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


@expert(Kind.PLAIN.value)
class Plain(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))

    def forward(self, x):
        return self.net(x)


class Mixture(nn.Module):
    def __init__(self, d, kinds, k=2):
        super().__init__()
        self.router = nn.Linear(d, len(kinds), bias=False)
        self.experts = nn.ModuleList(EXPERTS[kind.value](d) for kind in kinds)
        self.k = k

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        top, chosen = scores.topk(self.k, -1)
        gates = torch.zeros_like(scores).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
        out = torch.zeros_like(x)
        for number, each in enumerate(self.experts):
            out = out + gates[:, number, None] * each(x)
        load = gates.gt(0).float().mean(0)
        return out, (load * scores.mean(0)).sum() * len(self.experts)


def mixture_from_a_registry(device):
    torch.manual_seed(0)
    kinds = [Kind.GATED, Kind.PLAIN, Kind.GATED, Kind.PLAIN]
    return Mixture(16, kinds).to(device), (torch.randn(24, 16, device=device),)


# A whole sampler driven by a Python generator.
@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    t: float
    alpha: float
    alpha_next: float
    noise: float


def cosine_steps(count, eta):
    def bar(u):
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    for i in range(count, 0, -1):
        a, b = bar(i / (count + 1)), bar((i - 1) / (count + 1))
        yield Step(i / count, a, b, eta * math.sqrt((1 - b) / (1 - a) * (1 - a / b)))


def ddim_by_a_generator(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))
    net = net.to(device).requires_grad_(False)

    def sample(x):
        for step in cosine_steps(6, eta=0.5):
            t = x.new_full((len(x), 1), step.t)
            eps = net(torch.cat([x, t], 1))
            clean = ((x - math.sqrt(1 - step.alpha) * eps) / math.sqrt(step.alpha)).clamp(-3, 3)
            rest = math.sqrt(max(1 - step.alpha_next - step.noise**2, 0.0))
            x = math.sqrt(step.alpha_next) * clean + rest * eps + step.noise * torch.randn_like(x)
        return x

    return sample, (torch.randn(4, 8, device=device),)


# Ranking with discounts that are kept in a weak dictionary.
class Discounts:
    shared: ClassVar = weakref.WeakValueDictionary()

    def __init__(self, length, device):
        places = torch.arange(length, device=device, dtype=torch.float32)
        self.table = 1.0 / torch.log2(places + 2.0)

    @classmethod
    def get(cls, length, device):
        key = (length, str(device))
        found = cls.shared.get(key)
        if found is None:
            found = cls.shared[key] = cls(length, device)
        return found


class Ranker(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.query = nn.Linear(d, d)
        self.item = nn.Linear(d, d)
        self.discounts = None

    def forward(self, query, items, gains):
        scores = torch.einsum("bd,bnd->bn", self.query(query), self.item(items))
        order = scores.argsort(-1, descending=True)
        self.discounts = Discounts.get(items.shape[1], items.device)
        dcg = (gains.gather(1, order) * self.discounts.table).sum(-1)
        ideal = (gains.sort(-1, descending=True).values * self.discounts.table).sum(-1)
        loss = functional.cross_entropy(scores, gains.softmax(-1))
        return loss, (dcg / ideal.clamp(min=1e-6)).detach()


def ranking_with_weakly_held_discounts(device):
    torch.manual_seed(0)
    batch = (
        torch.randn(5, 12, device=device),
        torch.randn(5, 9, 12, device=device),
        torch.rand(5, 9, device=device),
    )
    return Ranker().to(device), batch


# Streaming speech: a ring of frames with its head on the device.
class RingConv(nn.Module):
    """A causal convolution over the last `width` frames."""

    def __init__(self, d=8, width=5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, d) / width)
        self.register_buffer("ring", torch.zeros(width, 1, d))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))
        self.register_buffer("ages", torch.arange(width))

    @property
    def width(self):
        return len(self.ages)

    def forward(self, frame):
        self.ring.index_copy_(0, self.head.view(1), frame[None])
        order = (self.head - self.ages) % self.width
        out = torch.einsum("wbd,wd->bd", self.ring[order], self.weight)
        self.head.add_(1).remainder_(self.width)
        return functional.gelu(out)


def streaming_ring_convolution(device):
    torch.manual_seed(0)
    layers = nn.Sequential(RingConv(), RingConv()).to(device).requires_grad_(False).eval()
    return layers, (torch.randn(1, 8, device=device),)


# A lattice whose two grids change their names twice in a call.
class Lattice:
    """D2Q9; an even number of half steps leaves the names where they were."""

    def __init__(self, n, device):
        self.shifts = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
        self.c = torch.tensor(self.shifts, dtype=torch.float32, device=device)
        self.w = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, device=device).view(9, 1, 1)
        self.now = self.w * torch.ones(9, n, n, device=device)
        self.now += 0.01 * torch.rand_like(self.now)
        self.next = torch.empty_like(self.now)

    def half(self, omega):
        rho = self.now.sum(0)
        u = torch.einsum("qd,qxy->dxy", self.c, self.now) / rho
        cu = 3 * torch.einsum("qd,dxy->qxy", self.c, u)
        rest = self.w * rho * (1 + cu + 0.5 * cu * cu - 1.5 * (u * u).sum(0))
        post = self.now + omega * (rest - self.now)
        for q, (dx, dy) in enumerate(self.shifts):
            self.next[q].copy_(post[q].roll((dx, dy), (0, 1)))
        self.now, self.next = self.next, self.now

    def __call__(self):
        for omega in (1.2, 1.2):
            self.half(omega)
        return self.now.sum(0)


def lattice_swaps_twice(device):
    torch.manual_seed(0)
    return Lattice(12, device)


# A controller with an inverse by a fixed number of iterations.
class Controller(nn.Module):
    """Operational-space control: the damped inverse by Newton-Schulz."""

    def __init__(self, joints=4, rounds=12):
        super().__init__()
        self.rounds = rounds
        self.register_buffer("eye", torch.eye(3))
        self.register_buffer("gains", torch.tensor([8.0, 2.0]))
        self.net = nn.Linear(2 * joints, 3 * joints)

    @functools.cached_property
    def damping(self):
        return 0.1 * self.eye

    def forward(self, q, dq, goal):
        jacobian = self.net(torch.cat([q, dq], -1)).view(-1, 3, q.shape[-1]).tanh()
        a = jacobian @ jacobian.mT + self.damping
        inverse = a.mT / (a.abs().sum(-1).amax(-1) * a.abs().sum(-2).amax(-1)).view(-1, 1, 1)
        for _ in range(self.rounds):
            inverse = inverse @ (2 * self.eye - a @ inverse)
        error = goal - (jacobian @ q[..., None]).squeeze(-1)
        force = self.gains[0] * error - self.gains[1] * (jacobian @ dq[..., None]).squeeze(-1)
        return (jacobian.mT @ inverse @ force[..., None]).squeeze(-1)


def controller_with_newton_schulz(device):
    torch.manual_seed(0)
    state = [torch.randn(6, n, device=device) for n in (4, 4, 3)]
    return Controller().to(device).requires_grad_(False), tuple(state)


# 2:4 sparsity as a parametrization.
class TwoOfFour(nn.Module):
    def forward(self, weight):
        groups = weight.unflatten(-1, (-1, 4))
        kept = groups.abs().topk(2, -1).indices
        mask = torch.zeros_like(groups).scatter_(-1, kept, 1.0)
        sparse = (groups * mask).flatten(-2)
        return weight + (sparse - weight).detach()


def two_of_four_parametrization(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    for module in model:
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", TwoOfFour())
    return model.to(device), (torch.randn(6, 16, device=device, requires_grad=True),)


# Sinkhorn that stops by a mask.
def sinkhorn_stops_by_a_mask(device):
    torch.manual_seed(0)
    tolerance, sharpness = 1e-3, 10.0

    def transport(x, y):
        cost = torch.cdist(x, y).square()
        f, g = (torch.zeros(n, device=cost.device) for n in cost.shape)
        running = torch.ones((), dtype=torch.bool, device=cost.device)
        for _ in range(20):
            new_g = -torch.logsumexp(f[:, None] - sharpness * cost, 0) - math.log(len(y))
            new_f = -torch.logsumexp(new_g[None] - sharpness * cost, 1) - math.log(len(x))
            moved = (new_f - f).abs().amax()
            f, g = torch.where(running, new_f, f), torch.where(running, new_g, g)
            running = running & (moved > tolerance)
        plan = (f[:, None] + g[None] - sharpness * cost).exp()
        return (plan * cost).sum(), plan

    clouds = (torch.rand(10, 3, device=device), torch.rand(12, 3, device=device))
    return transport, clouds


# Beam search in dataclasses.
@dataclasses.dataclass(slots=True)
class Beams:
    tokens: torch.Tensor
    scores: torch.Tensor
    done: torch.Tensor
    state: torch.Tensor

    def pick(self, parents):
        return dataclasses.replace(
            self, tokens=self.tokens[parents], done=self.done[parents], state=self.state[parents]
        )


class BeamSearch(nn.Module):
    def __init__(self, vocabulary=11, d=16, width=3, length=5, end=0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d)
        self.cell = nn.GRUCell(d, d)
        self.head = nn.Linear(d, vocabulary)
        self.width, self.length, self.end = width, length, end
        only_end = torch.full((vocabulary,), -torch.inf)
        only_end[end] = 0.0
        self.register_buffer("only_end", only_end)
        self.register_buffer("first", torch.tensor([0.0] + [-torch.inf] * (width - 1)))

    def forward(self, context):
        zeros = context.new_zeros(self.width, self.length, dtype=torch.long)
        beams = Beams(zeros, self.first, zeros[:, 0].bool(), context.expand(self.width, -1))
        last = zeros[:, 0] + 1
        for position in range(self.length):
            state = self.cell(self.embed(last), beams.state)
            logs = self.head(state).log_softmax(-1)
            logs = torch.where(beams.done[:, None], self.only_end, logs)
            total = (beams.scores[:, None] + logs).flatten()
            scores, best = total.topk(self.width)
            parents, last = best // logs.shape[1], best % logs.shape[1]
            beams = dataclasses.replace(beams, state=state).pick(parents)
            beams.tokens[:, position] = last
            beams.scores, beams.done = scores, beams.done | (last == self.end)
        return beams.tokens, beams.scores


def beam_search_in_dataclasses(device):
    torch.manual_seed(0)
    model = BeamSearch().to(device).requires_grad_(False).eval()
    return model, (torch.randn(1, 16, device=device),)


# A tokenizer on the device.
class HashTokenizer(nn.Module):
    """Words are hashed by prefix sums and looked up in a sorted table."""

    def __init__(self, words=("the", "cat", "sat", "on", "mat")):
        super().__init__()
        powers = torch.tensor([pow(31, i, 65521) for i in range(64)])
        table = sorted(sum(ord(c) * pow(31, i, 65521) for i, c in enumerate(w)) for w in words)
        self.register_buffer("powers", powers)
        self.register_buffer("table", torch.tensor(table))

    def forward(self, text):
        space = text == 32
        word = space.cumsum(-1)
        starts = torch.where(space, torch.arange(text.shape[-1], device=text.device) + 1, 0)
        offset = torch.arange(text.shape[-1], device=text.device) - starts.cummax(-1).values
        parts = torch.where(space, 0, text * self.powers[offset.clamp(0)])
        hashes = torch.zeros(text.shape[0], 16, dtype=torch.long, device=text.device)
        hashes.scatter_add_(1, word.clamp(max=15), parts)
        ids = torch.searchsorted(self.table, hashes).clamp(max=len(self.table) - 1)
        return torch.where(self.table[ids] == hashes, ids + 1, 0)


def tokenizer_by_hashes(device):
    text = ["the cat sat on a mat    ", "a dog sat on the cat    "]
    codes = torch.tensor([list(line.encode()) for line in text], device=device)
    return HashTokenizer().to(device), (codes,)


# Features taken by hooks inside a context manager.
class Features:
    def __init__(self, *modules):
        self.modules, self.kept, self.handles = modules, [], []

    def __enter__(self):
        self.kept.clear()
        self.handles = [m.register_forward_hook(self._keep) for m in self.modules]
        return self.kept

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def _keep(self, module, inputs, output):
        self.kept.append(output)


def distillation_with_temporary_hooks(device):
    torch.manual_seed(0)

    def tower(width):
        return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 5)).to(device)

    teacher, student = tower(32).requires_grad_(False), tower(12)
    bridge = nn.Linear(12, 32).to(device)
    parameters = [*student.parameters(), *bridge.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            wanted = stack.enter_context(Features(teacher[1]))
            made = stack.enter_context(Features(student[1]))
            with torch.no_grad():
                target = teacher(x).div(2.0).softmax(-1)
            logits = student(x)
        loss = functional.kl_div(logits.div(2.0).log_softmax(-1), target, reduction="batchmean") * 4
        loss = loss + functional.mse_loss(bridge(made[0]), wanted[0])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Experts get their tokens in groups.
class GroupedExperts(nn.Module):
    def __init__(self, d=8, count=4):
        super().__init__()
        self.router = nn.Linear(d, count)
        self.weights = nn.Parameter(torch.randn(count, d, d) / d**0.5)

    def forward(self, x):
        best, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        ends = torch.searchsorted(
            chosen[order], torch.arange(len(self.weights), device=x.device), right=True
        )
        sizes = ends.diff(prepend=ends.new_zeros(1))
        groups = torch.tensor_split(x[order], ends[:-1].cpu())  # guilty: sizes go to the host
        out = torch.cat([g @ w for g, w in zip(groups, self.weights, strict=True)])
        return torch.zeros_like(x).index_copy(0, order, out) * best[:, None], sizes


def experts_in_groups(device):
    torch.manual_seed(0)
    return GroupedExperts().to(device), (torch.randn(20, 8, device=device),)


# A sampler that asks an iterator for its next noise level.
class Denoiser(nn.Module):
    def __init__(self, levels=(8.0, 4.0, 2.0, 1.0, 0.5)):
        super().__init__()
        self.net = nn.Linear(6, 6)
        self.pairs = itertools.cycle(itertools.pairwise(levels))

    def forward(self, x):
        now, after = next(self.pairs)  # guilty: each replay has the pair of the capture
        slope = (x - self.net(x / (1 + now**2) ** 0.5)) / now  # guilty: as captured
        return x + (after - now) * slope  # guilty: each replay has the pair of the capture


def levels_from_a_cycle(device):
    torch.manual_seed(0)
    return Denoiser().to(device).requires_grad_(False), (torch.randn(3, 6, device=device),)


# An inverted file that is indexed by a tensor.
class InvertedFile:
    def __init__(self, vectors, centers):
        self.centers = centers
        owner = torch.cdist(vectors, centers).argmin(-1)
        self.lists = [vectors[owner == number] for number in range(len(centers))]

    def __getitem__(self, query):
        nearest = (query @ self.centers.T).argmax()
        members = self.lists[nearest]  # guilty: a list asks the tensor for __index__
        return (members @ query).amax()


def inverted_file_by_index(device):
    torch.manual_seed(0)
    index = InvertedFile(torch.randn(64, 8, device=device), torch.randn(4, 8, device=device))
    return index.__getitem__, (torch.randn(8, device=device),)


# Overlap-add of speech keeps its tail in a context variable.
TAIL: contextvars.ContextVar[torch.Tensor | None] = contextvars.ContextVar("tail", default=None)


def overlap_add_by_a_context_variable(device):
    torch.manual_seed(0)
    TAIL.set(None)
    basis = torch.randn(12, 16, device=device) / 4
    window = torch.hann_window(16, device=device)

    def decode(codes):
        frame = (codes @ basis) * window
        tail = TAIL.get()
        if tail is None:
            tail = torch.zeros(codes.shape[0], 8, device=device)
        TAIL.set(frame[:, 8:])  # guilty: a replay adds the tail that the capture found
        return frame[:, :8] + tail  # guilty: the tail that the capture found

    return decode, (torch.randn(2, 12, device=device),)


# Particles of a fluid in cells.
def density_of_occupied_cells(device):
    torch.manual_seed(0)

    def density(position, mass):
        cell = (position * 6).long().clamp(0, 5)
        key = (cell[:, 0] * 6 + cell[:, 1]) * 6 + cell[:, 2]
        used, place = torch.unique(key, return_inverse=True)  # guilty: the number of cells
        total = torch.zeros(len(used), device=mass.device).index_add_(0, place, mass)
        return total[place] * 6**3

    return density, (torch.rand(40, 3, device=device), torch.rand(40, device=device))


# Optimal transport until it converges.
class Transport(nn.Module):
    def __init__(self, epsilon=0.1, tolerance=1e-2, most=50):
        super().__init__()
        self.epsilon, self.tolerance, self.most = epsilon, tolerance, most

    def potentials(self, cost):
        f = cost.new_zeros(cost.shape[0])
        for _ in range(self.most):
            g = -self.epsilon * torch.logsumexp((f[:, None] - cost) / self.epsilon, 0)
            last, f = f, -self.epsilon * torch.logsumexp((g[None] - cost) / self.epsilon, 1)
            yield f, g, (f - last).abs().amax()

    def forward(self, x, y):
        cost = torch.cdist(x, y)
        unfinished = lambda step: step[2] > self.tolerance  # noqa: E731
        steps = itertools.dropwhile(unfinished, self.potentials(cost))
        f, g, _ = next(steps)  # guilty: dropwhile asks a device bool
        return f.mean() + g.mean()


def transport_until_it_converges(device):
    torch.manual_seed(0)
    return Transport().to(device), (
        torch.rand(6, 2, device=device),
        torch.rand(6, 2, device=device),
    )


# Frames of a video in a history of states.
@dataclasses.dataclass(frozen=True)
class Track:
    mean: torch.Tensor
    spread: torch.Tensor
    age: int = 0

    def moved(self, z, gain):
        mean = self.mean + gain * (z - self.mean)  # guilty: the track of the capture
        spread = self.spread + gain * (
            (z - mean).square() - self.spread
        )  # guilty: the track of the capture
        return dataclasses.replace(self, mean=mean, spread=spread, age=self.age + 1)


class Tracker(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.embed = nn.Conv2d(3, d, 3, padding=1)
        self.track = None

    def forward(self, frame):
        z = self.embed(frame).mean((-2, -1))
        if self.track is None:
            self.track = Track(torch.zeros_like(z), torch.ones_like(z))
        self.track = self.track.moved(z, 0.2)  # guilty: a replay starts from the same track
        return (z - self.track.mean) / self.track.spread.sqrt()


def video_track_is_replaced(device):
    torch.manual_seed(0)
    return Tracker().to(device).requires_grad_(False), (torch.randn(1, 3, 8, 8, device=device),)


# A tokenizer joins its pieces.
def pieces_without_blanks(device):
    torch.manual_seed(0)
    table = nn.Embedding(32, 8, device=device).requires_grad_(False)

    def encode(codes):
        blank = codes == 0
        kept = torch.where(blank, -1, codes)
        repeated = functional.pad(kept[1:] == kept[:-1], (1, 0))
        chosen = kept[~(blank | repeated)]  # guilty: the number of kept codes
        return table(chosen).mean(0)

    return encode, (torch.randint(32, (40,), device=device),)


# A cached bound of a layer is dropped now and then.
class Bounded(nn.Module):
    """Divides by the largest row norm, which is looked up again after every 16 calls."""

    def __init__(self, d=8):
        super().__init__()
        self.linear = nn.Linear(d, d)
        self.calls = 0

    @functools.cached_property
    def bound(self):
        return self.linear.weight.detach().norm(dim=1).amax()

    def forward(self, x):
        self.calls += 1  # guilty: no replay counts
        if self.calls % 16 == 0:  # guilty: no replay drops the bound
            self.__dict__.pop("bound", None)
        with torch.no_grad():
            self.linear.weight.mul_(1.01)
        return self.linear(x) / self.bound


def bound_is_dropped_now_and_then(device):
    torch.manual_seed(0)
    return Bounded().to(device).requires_grad_(False), (torch.randn(4, 8, device=device),)

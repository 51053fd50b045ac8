"""Idioms of serving engines and of training steps."""

import collections
import dataclasses
import functools
import itertools
import math
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.free = collections.deque(range(num_blocks))
        self.block_size = block_size
        self.tables = {}
        self.lengths = {}

    def slot(self, request):
        length = self.lengths.get(request, 0)  # guilty: the slot is a number
        table = self.tables.setdefault(request, [])
        if length % self.block_size == 0:
            table.append(self.free.popleft())
            self.free.append(table[0])
        self.lengths[request] = length + 1  # guilty: the slot is a number
        return table[length // self.block_size] * self.block_size + length % self.block_size


class PagedAttention(nn.Module):
    def __init__(self, dim, heads, blocks, block_size):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.qkv = nn.Linear(dim, 3 * dim)
        self.manager = BlockManager(blocks, block_size)
        self.register_buffer("k_cache", torch.zeros(blocks * block_size, heads, dim // heads))
        self.register_buffer("v_cache", torch.zeros(blocks * block_size, heads, dim // heads))

    def forward(self, x):
        q, k, v = self.qkv(x).view(3, self.heads, -1).unbind(0)
        slot = self.manager.slot("r0")  # guilty: the slot is a number
        self.k_cache[slot] = k  # guilty: the slot is a number
        self.v_cache[slot] = v  # guilty: the slot is a number
        scores = torch.einsum("hd,shd->hs", q, self.k_cache) / math.sqrt(self.dim // self.heads)
        return torch.einsum("hs,shd->hd", scores.softmax(-1), self.v_cache).reshape(1, -1)


def paged_python_slots(device):
    model = PagedAttention(64, 4, 32, 8).to(device).eval()
    x = torch.randn(1, 64, device=device)

    @torch.no_grad()
    def decode(x):
        return model(x)

    return decode, (x,)


def speculative_accept(device):
    draft = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).to(device)
    target = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).to(device)
    tokens = torch.randint(100, (5,), device=device)

    @torch.inference_mode()
    def verify_draft(tokens):
        proposed = draft(tokens).argmax(-1)
        expected = target(tokens).argmax(-1)
        agree = (proposed == expected).long().cumprod(-1)
        accepted = agree.sum()
        bonus = expected.narrow(0, int(accepted.clamp(max=4)), 1)  # guilty: read on the host
        return torch.cat([proposed, bonus])

    return verify_draft, (tokens,)


class LoraLinear(nn.Module):
    def __init__(self, features, names, rank=4):
        super().__init__()
        self.base = nn.Linear(features, features)
        self.a = nn.ParameterDict({n: nn.Parameter(torch.randn(features, rank)) for n in names})
        self.b = nn.ParameterDict({n: nn.Parameter(torch.randn(rank, features)) for n in names})
        self.active = names[0]

    def forward(self, x):
        return (
            self.base(x) + x @ self.a[self.active] @ self.b[self.active]
        )  # guilty: the adapter of the capture


class LoraServer:
    def __init__(self, model, names):
        self.model, self.names = model, names
        self.requests = 0

    def set_adapter(self, name):
        for module in self.model.modules():
            if isinstance(module, LoraLinear):
                module.active = name  # guilty: the adapter of the capture

    @torch.no_grad()
    def handle(self, x):
        self.set_adapter(
            self.names[self.requests % len(self.names)]
        )  # guilty: the adapter of the capture
        self.requests += 1  # guilty: the adapter of the capture
        return self.model(x)


def lora_round_robin(device):
    names = ["sql", "chat", "code"]
    model = nn.Sequential(LoraLinear(32, names), nn.GELU(), LoraLinear(32, names)).to(device)
    return LoraServer(model, names).handle, (torch.randn(8, 32, device=device),)


class MoeBlock(nn.Module):
    def __init__(self, dim, experts, top_k):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))
        self.top_k = top_k

    def forward(self, hidden):
        batch, length, dim = hidden.shape
        hidden = hidden.view(-1, dim)
        weights, selected = functional.softmax(self.gate(hidden), dim=1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        final = torch.zeros_like(hidden)
        expert_mask = functional.one_hot(selected, num_classes=len(self.experts)).permute(2, 1, 0)
        hit = torch.greater(
            expert_mask.sum(dim=(-1, -2)), 0
        ).nonzero()  # guilty: as many as are hit
        for index in hit:
            rank, top = torch.where(expert_mask[index].squeeze(0))
            state = hidden[None, top].reshape(-1, dim)
            final.index_add_(0, top, self.experts[index](state) * weights[top, rank, None])
        return final.view(batch, length, dim)


def mixtral_moe(device):
    return MoeBlock(32, 4, 2).to(device), (torch.randn(2, 8, 32, device=device),)


class BeamScorer:
    def __init__(self, beams, eos, device):
        self.beams, self.eos = beams, eos
        self.done = torch.zeros(2, dtype=torch.bool, device=device)
        self.finished = [[] for _ in range(2)]

    def process(self, scores, tokens, indices):
        for b in range(2):
            if self.done[b]:  # guilty: a branch on the device
                continue
            self.done[b] |= (tokens[b] == self.eos).any()
        return scores[:, : self.beams], tokens[:, : self.beams], indices[:, : self.beams]


def beam_scorer_done(device):
    head = nn.Linear(32, 50).to(device)
    scorer = BeamScorer(3, 2, device)
    beam_scores = torch.zeros(2, 3, device=device)

    @torch.no_grad()
    def advance(hidden):
        logits = functional.log_softmax(head(hidden), -1).view(2, 3, 50) + beam_scores[..., None]
        scores, flat = logits.view(2, -1).topk(6, dim=1)
        tokens, indices = flat % 50, torch.div(flat, 50, rounding_mode="floor")
        scores, tokens, indices = scorer.process(scores, tokens, indices)
        beam_scores.copy_(scores)
        return tokens, indices

    return advance, (torch.randn(6, 32, device=device),)


def grad_scaler_unfused(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    x = torch.randn(8, 16, device=device)
    y = torch.randint(4, (8,), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # guilty: reads found_inf
        scaler.update()
        return loss

    return step


class Accumulator:
    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.micro = 0

    def __call__(self, x, y):
        loss = functional.mse_loss(self.model(x), y) / self.every
        loss.backward()
        self.micro += 1  # guilty: every fourth call
        if self.micro % self.every == 0:  # guilty: every fourth call
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
        return loss.detach()


def gradient_accumulation(device):
    model = nn.Linear(16, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    trainer = Accumulator(model, optimizer, every=4)
    return trainer, (torch.randn(8, 16, device=device), torch.randn(8, 4, device=device))


class ModelEma:
    def __init__(self, model, decay=0.999, warmup=True):
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.decay, self.warmup, self.updates = decay, warmup, 0

    def current_decay(self):
        if not self.warmup:
            return self.decay
        return min(
            self.decay, (1 + self.updates) / (10 + self.updates)
        )  # guilty: the decay follows a count

    @torch.no_grad()
    def update(self, model):
        self.updates += 1  # guilty: the decay follows a count
        decay = self.current_decay()  # guilty: the decay follows a count
        torch._foreach_mul_(self.shadow, decay)  # guilty: the decay follows a count
        torch._foreach_add_(
            self.shadow, list(model.parameters()), alpha=1 - decay
        )  # guilty: the decay follows a count


def ema_warmup(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    ema = ModelEma(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        ema.update(model)
        return loss

    return step


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.alpha, None  # guilty: alpha follows a count


class Dann(nn.Module):
    def __init__(self, total):
        super().__init__()
        self.features = nn.Linear(16, 32)
        self.domain = nn.Linear(32, 2)
        self.label = nn.Linear(32, 5)
        self.iteration, self.total = 0, total

    def forward(self, x):
        p = self.iteration / self.total  # guilty: alpha follows a count
        self.iteration += 1  # guilty: alpha follows a count
        alpha = 2.0 / (1.0 + math.exp(-10 * p)) - 1  # guilty: alpha follows a count
        features = self.features(x).relu()
        return self.label(features), self.domain(
            Reverse.apply(features, alpha)
        )  # guilty: alpha follows a count


def dann_gradient_reversal(device):
    return Dann(1000).to(device), (torch.randn(8, 16, device=device),)


@torch.library.custom_op("corpus::greedy_nms", mutates_args=())
def greedy_nms(boxes: torch.Tensor, scores: torch.Tensor, limit: int) -> torch.Tensor:
    order = scores.argsort(descending=True)
    host = boxes[order].cpu().numpy()  # guilty: the boxes are copied to the host
    keep = []
    for i in range(len(host)):
        if all(abs(host[i] - host[j]).sum() > 1.0 for j in keep):
            keep.append(i)
    keep = (keep + [0] * limit)[:limit]
    return order[torch.as_tensor(keep, device=boxes.device)]


@greedy_nms.register_fake
def _(boxes, scores, limit):
    return scores.new_empty(limit, dtype=torch.int64)


def custom_op_nms(device):
    head = nn.Linear(16, 5).to(device)

    @torch.no_grad()
    def detect(features):
        out = head(features)
        keep = greedy_nms(out[:, :4], out[:, 4], 4)
        return out[keep]

    return detect, (torch.randn(12, 16, device=device),)


class RopeCache:
    """Tables live as long as someone uses them."""

    def __init__(self, device):
        self.device = device
        self.tables = weakref.WeakValueDictionary()

    def get(self, length, dim):
        table = self.tables.get((length, dim))
        if table is None:
            angles = [[p / 10000 ** (2 * i / dim) for i in range(dim // 2)] for p in range(length)]
            table = torch.tensor(angles, device=self.device)  # guilty: the table is copied anew
            self.tables[length, dim] = table
        return table


def rope_weak_cache(device):
    cache = RopeCache(device)

    @torch.no_grad()
    def rotate(x):
        angle = cache.get(x.shape[1], x.shape[2])
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    return rotate, (torch.randn(2, 8, 16, device=device),)


@dataclasses.dataclass(frozen=True)
class PpoConfig:
    clip: float = 0.2
    entropy: float = 0.01
    beta: float = 0.5

    def anneal(self):
        return dataclasses.replace(self, clip=self.clip * 0.99, entropy=self.entropy * 0.9)


class Ppo:
    def __init__(self, policy, config):
        self.policy, self.config = policy, config

    def loss(self, states, actions, old, advantages):
        dist = torch.distributions.Categorical(logits=self.policy(states), validate_args=False)
        ratio = (dist.log_prob(actions) - old).exp()
        clip = self.config.clip  # guilty: annealed in each call
        clipped = ratio.clamp(1 - clip, 1 + clip) * advantages  # guilty: annealed in each call
        loss = -torch.min(ratio * advantages, clipped).mean()
        loss = loss - self.config.entropy * dist.entropy().mean()  # guilty: annealed in each call
        self.config = self.config.anneal()  # guilty: annealed in each call
        return loss


def ppo_annealed_config(device):
    agent = Ppo(nn.Linear(8, 4).to(device), PpoConfig())
    return agent.loss, (
        torch.randn(16, 8, device=device),
        torch.randint(4, (16,), device=device),
        torch.full((16,), -1.4, device=device),
        torch.randn(16, device=device),
    )


def karras(n, low=0.03, high=14.6, rho=7.0):
    ramp = np.linspace(0, 1, n)
    sigmas = (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    for now, then in zip(itertools.cycle(sigmas), itertools.cycle(np.roll(sigmas, -1))):
        yield float(now), float(then)


def euler_sampler_generator(device):
    unet = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))
    unet = unet.to(device).eval()
    schedule = karras(20)

    @torch.no_grad()
    def denoise(x):
        sigma, sigma_next = next(schedule)  # guilty: the next sigma
        scaled = x / (sigma**2 + 1) ** 0.5  # guilty: the next sigma
        derivative = (x - unet(scaled)) / sigma  # guilty: the next sigma
        return x + derivative * (sigma_next - sigma)  # guilty: the next sigma

    return denoise, (torch.randn(1, 4, 16, 16, device=device),)


def dataloader_in_step(device):
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    model = nn.Linear(16, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.empty(8, 16, device=device)
    y = torch.empty(8, 1, device=device)

    def step():
        inputs, targets = next(batches)  # guilty: a batch of the host
        x.copy_(inputs, non_blocking=True)  # guilty: a batch of the host
        y.copy_(targets, non_blocking=True)  # guilty: a batch of the host
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


class PagedCache(nn.Module):
    def __init__(self, blocks, block_size, heads, head_dim):
        super().__init__()
        self.block_size = block_size
        self.register_buffer("k", torch.zeros(blocks, block_size, heads, head_dim))
        self.register_buffer("v", torch.zeros(blocks, block_size, heads, head_dim))

    def write(self, k, v, slots):
        self.k.view(-1, *self.k.shape[2:]).index_copy_(0, slots, k)
        self.v.view(-1, *self.v.shape[2:]).index_copy_(0, slots, v)

    def read(self, tables):
        return self.k[tables].flatten(1, 2), self.v[tables].flatten(1, 2)


def paged_attention_decode(device):
    batch, heads, dim, block = 4, 2, 8, 4
    cache = PagedCache(32, block, heads, dim).to(device)
    qkv = nn.Linear(16, 3 * heads * dim).to(device)
    tables = torch.arange(batch * 8, device=device).view(batch, 8)
    lengths = torch.zeros(batch, dtype=torch.int64, device=device)

    @torch.no_grad()
    def decode(x):
        q, k, v = qkv(x).view(batch, 3, heads, dim).unbind(1)
        position = lengths.remainder(8 * block)
        page = tables.gather(1, torch.div(position, block, rounding_mode="floor")[:, None])[:, 0]
        cache.write(k, v, page * block + position % block)
        keys, values = cache.read(tables)
        mask = torch.arange(keys.shape[1], device=x.device)[None] <= position[:, None]
        scores = torch.einsum("bhd,bshd->bhs", q, keys) / math.sqrt(dim)
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
        lengths.add_(1)
        return torch.einsum("bhs,bshd->bhd", scores.softmax(-1), values)

    return decode, (torch.randn(batch, 16, device=device),)


def speculative_accept_on_device(device):
    draft = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).to(device)
    target = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).to(device)
    tokens = torch.randint(100, (3, 5), device=device)

    @torch.inference_mode()
    def verify_draft(tokens):
        p = target(tokens).softmax(-1)
        q = draft(tokens).softmax(-1)
        proposed = torch.multinomial(q.flatten(0, 1), 1).view_as(tokens)
        ratio = (p / q).gather(-1, proposed[..., None]).squeeze(-1)
        agree = torch.rand_like(ratio) < ratio.clamp(max=1.0)
        accepted = agree.long().cumprod(-1).sum(-1)
        residual = (p - q).clamp(min=0)
        at = accepted.clamp(max=4)[:, None, None].expand(-1, 1, 100)
        dist = residual.gather(1, at).squeeze(1) + 1e-9
        bonus = torch.multinomial(dist / dist.sum(-1, keepdim=True), 1)
        keep = torch.arange(5, device=tokens.device)[None] < accepted[:, None]
        return torch.where(keep, proposed, -1), bonus, accepted

    return verify_draft, (tokens,)


class BatchedLora(nn.Module):
    def __init__(self, features, adapters, rank):
        super().__init__()
        self.base = nn.Linear(features, features)
        self.a = nn.Parameter(torch.randn(adapters, features, rank))
        self.b = nn.Parameter(torch.randn(adapters, rank, features))

    def forward(self, x, ids):
        shrink = torch.bmm(x[:, None], self.a[ids])
        return self.base(x) + torch.bmm(shrink, self.b[ids])[:, 0]


def lora_batched_ids(device):
    layer = BatchedLora(32, 4, 8).to(device)
    x = torch.randn(6, 32, device=device, requires_grad=True)
    return layer, (x, torch.randint(4, (6,), device=device))


class CapacityMoe(nn.Module):
    """Switch Transformer's dispatch with a capacity that follows from the shape."""

    def __init__(self, dim, experts, factor):
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) * 0.1)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) * 0.1)
        self.factor = factor

    def forward(self, x):
        tokens, experts = x.shape[0], self.w1.shape[0]
        capacity = int(self.factor * tokens / experts)
        gates = self.router(x).softmax(-1)
        gate, index = gates.max(-1)
        onehot = functional.one_hot(index, num_classes=experts)
        place = (onehot.cumsum(0) - 1) * onehot
        onehot = onehot * (place < capacity)
        slot = functional.one_hot((place * onehot).sum(-1), num_classes=capacity)
        dispatch = (onehot[:, :, None] * slot[:, None, :]).to(x.dtype)
        packed = torch.einsum("tec,td->ecd", dispatch, x)
        hidden = torch.bmm(functional.gelu(torch.bmm(packed, self.w1)), self.w2)
        balance = (onehot.float().mean(0) * gates.mean(0)).sum() * experts
        return torch.einsum("tec,ecd->td", dispatch, hidden) * gate[:, None], balance


def switch_moe_capacity(device):
    return CapacityMoe(16, 4, 1.25).to(device), (torch.randn(32, 16, device=device),)


def beam_search_reorder(device):
    batch, beams, vocab = 2, 3, 40
    embed = nn.Embedding(vocab, 16).to(device)
    head = nn.Linear(16, vocab).to(device)
    cache = torch.zeros(batch * beams, 8, 16, device=device)
    scores = torch.zeros(batch, beams, device=device)
    tokens = torch.zeros(batch * beams, dtype=torch.int64, device=device)
    position = torch.zeros(1, dtype=torch.int64, device=device)
    offset = torch.arange(batch, device=device)[:, None] * beams

    @torch.no_grad()
    def advance():
        state = embed(tokens)
        cache.index_copy_(1, position, state[:, None])
        logits = functional.log_softmax(head(state + cache.mean(1)), -1)
        total = scores[..., None] + logits.view(batch, beams, vocab)
        best, flat = total.view(batch, -1).topk(beams)
        source = (torch.div(flat, vocab, rounding_mode="trunc") + offset).view(-1)
        cache.copy_(cache.index_select(0, source))
        scores.copy_(best)
        tokens.copy_((flat % vocab).view(-1))
        position.add_(1).remainder_(8)
        return tokens.view(batch, beams), scores

    return advance


def clipped_accumulation_unrolled(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).to(
        device
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-3, device=device), capturable=True, foreach=True
    )
    x = torch.randn(4, 8, 16, device=device)
    y = torch.randint(4, (4, 8), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for inputs, targets in zip(x.unbind(0), y.unbind(0), strict=True):
            loss = functional.cross_entropy(model(inputs), targets) / len(x)
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return total, norm

    return step


def grad_scaler_fused(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-3, device=device), fused=True, capturable=True
    )
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    x = torch.randn(8, 16, device=device)
    y = torch.randint(4, (8,), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = functional.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.updates = torch.zeros((), device=self.shadow[0].device)

    @torch.no_grad()
    def update(self, parameters):
        self.updates += 1
        decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.decay)
        torch._foreach_mul_(self.shadow, decay)
        torch._foreach_add_(self.shadow, [p * (1 - decay) for p in parameters])


def ema_warmup_on_device(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    ema = Ema(model, 0.999)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(32, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        ema.update(model.parameters())
        return loss

    return step


def flat_sharded_step(device):
    """ZeRO's step of one rank: the shard is a view of a flat buffer."""
    rank, world = 1, 4
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(device)
    count = sum(p.numel() for p in model.parameters())
    flat = torch.zeros((count + world - 1) // world * world, device=device)
    at = 0
    for p in model.parameters():
        flat[at : at + p.numel()].copy_(p.detach().view(-1))
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    shard = nn.Parameter(flat.chunk(world)[rank])
    optimizer = torch.optim.Adam([shard], lr=1e-3, capturable=True, fused=True)
    grads = torch.zeros_like(flat)
    x = torch.randn(8, 16, device=device)

    def step():
        for p in model.parameters():
            p.grad = None
        loss = (model(x) - x).square().mean()
        loss.backward()
        torch.cat([p.grad.view(-1) for p in model.parameters()], out=grads[:count])
        shard.grad = grads.chunk(world)[rank]
        optimizer.step()
        return loss

    return step


def checkpoint_without_rng(device):
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)
    )
    blocks = blocks.to(device)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            for block in self.blocks:
                x = x + torch.utils.checkpoint.checkpoint(
                    block, x, use_reentrant=False, preserve_rng_state=False
                )
            return x

    return Net(), (torch.randn(4, 16, device=device, requires_grad=True),)


def ntk_and_hvp(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    params = {k: v.detach() for k, v in model.named_parameters()}

    def f(p, x):
        return torch.func.functional_call(model, p, (x[None],))[0]

    def kernel(x, z):
        jac = torch.func.vmap(torch.func.jacrev(f), (None, 0))
        a = [j.flatten(2) for j in jac(params, x).values()]
        b = [j.flatten(2) for j in jac(params, z).values()]
        ntk = sum(torch.einsum("naf,mbf->nmab", i, j) for i, j in zip(a, b, strict=True))
        direction = torch.ones_like(x[0])
        _, hvp = torch.func.jvp(
            torch.func.grad(lambda v: f(params, v).sum()), (x[0],), (direction,)
        )
        return ntk, hvp

    return kernel, (torch.randn(5, 4, device=device), torch.randn(3, 4, device=device))


class ClampSte(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.bounds = (low, high)
        ctx.shape = tuple(x.shape)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        scale = 1.0 / math.sqrt(ctx.shape[-1])
        return grad * ((x >= low) & (x <= high)) * scale, None, None


def custom_function_constants(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(16, 16)
            self.limits = (-1.0, 1.0)

        def forward(self, x):
            return ClampSte.apply(self.lin(x), *self.limits)

    return Net().to(device), (torch.randn(4, 16, device=device),)


@torch.library.custom_op("corpus::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@rms_norm.register_fake
def _(x, weight, eps):
    return torch.empty_like(x)


def _rms_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.eps = inputs[2]


def _rms_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    inv = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + ctx.eps)
    normed = x * inv
    g = grad * weight
    return inv * (g - normed * (g * normed).mean(-1, keepdim=True)), (grad * normed).sum(0), None


rms_norm.register_autograd(_rms_backward, setup_context=_rms_setup)


def custom_op_rms_norm(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(16, 16)
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, x):
            return rms_norm(self.lin(x), self.scale, 1e-6)

    return Net().to(device), (torch.randn(4, 16, device=device),)


class FeatureExtractor(nn.Module):
    """Hooks fill a dict that the same call reads and clears."""

    def __init__(self, body, layers):
        super().__init__()
        self.body = body
        self.features = collections.OrderedDict()
        for name in layers:
            body.get_submodule(name).register_forward_hook(functools.partial(self.keep, name))

    def keep(self, name, module, args, output):
        self.features[name] = output

    def forward(self, x):
        self.features.clear()
        self.body(x)
        return {name: feature.mean((2, 3)) for name, feature in self.features.items()}


def hooked_features(device):
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()
    )
    return FeatureExtractor(body, ["1", "3"]).to(device).eval(), (
        torch.randn(2, 3, 16, 16, device=device),
    )


class MaskFactory:
    def __init__(self):
        self.masks = weakref.WeakKeyDictionary()

    def __call__(self, module, length, device):
        per_module = self.masks.setdefault(module, {})
        if length not in per_module:
            per_module[length] = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        return per_module[length]


def weak_module_mask_cache(device):
    masks = MaskFactory()

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(32, 96)

        def forward(self, x):
            b, s, _ = x.shape
            q, k, v = self.qkv(x).view(b, s, 3, 4, 8).permute(2, 0, 3, 1, 4)
            mask = masks(self, s, x.device)
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Attention().to(device), (torch.randn(2, 8, 32, device=device),)


@functools.lru_cache(maxsize=8)
def rotary_table(length, dim, base, device):
    inv = 1.0 / base ** (torch.arange(0, dim, 2, device=device).float() / dim)
    angle = torch.outer(torch.arange(length, device=device).float(), inv)
    return angle.cos(), angle.sin()


def lru_cached_rotary(device):
    lin = nn.Linear(16, 16).to(device)

    @torch.no_grad()
    def rotate(x, position):
        cos, sin = (t[position] for t in rotary_table(64, 16, 10000.0, x.device))
        a, b = lin(x).chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    return rotate, (torch.randn(4, 16, device=device), torch.arange(4, device=device))


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: tuple = ()


@dataclasses.dataclass
class Config:
    layers: int = 2
    dim: int = 16
    smoothing: float = 0.1
    extra: dict = dataclasses.field(default_factory=dict)


def dataclass_model_output(device):
    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = dataclasses.replace(config, extra={"scale": 0.5})
            self.layers = nn.ModuleList(
                nn.Linear(config.dim, config.dim) for _ in range(config.layers)
            )
            self.head = nn.Linear(config.dim, 5)

        def forward(self, x, labels):
            hidden = ()
            for layer in self.layers:
                x = functional.gelu(layer(x)) * self.config.extra["scale"]
                hidden += (x,)
            logits = self.head(x)
            loss = functional.cross_entropy(logits, labels, label_smoothing=self.config.smoothing)
            return Output(loss, logits, hidden)

    return Model(Config()).to(device), (
        torch.randn(8, 16, device=device),
        torch.randint(5, (8,), device=device),
    )

"""Workloads of a fourth cold review: serving, training, graphs, experts, and state of the host."""

import copy
import itertools
import json
import logging
import math
import tempfile
import threading
import time
import types
from collections import deque
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger("reviewed")


def paged_decode(device):
    blocks, block, heads, dim, batch = 16, 4, 2, 8, 3
    k_cache = torch.randn(blocks, block, heads, dim, device=device)
    v_cache = torch.randn(blocks, block, heads, dim, device=device)
    tables = torch.arange(12, device=device).view(3, 4)
    lens = torch.tensor([3, 7, 11], device=device)

    @torch.no_grad()
    def decode(q, k, v):
        slot = lens - 1
        page = tables.gather(1, (slot // block).unsqueeze(1)).squeeze(1)
        k_cache[page, slot % block] = k
        v_cache[page, slot % block] = v
        keys = k_cache[tables].flatten(1, 2)
        values = v_cache[tables].flatten(1, 2)
        scores = torch.einsum("bhd,bshd->bhs", q, keys) / math.sqrt(dim)
        steps = torch.arange(keys.shape[1], device=q.device)
        scores = scores.masked_fill(steps >= lens[:, None, None], float("-inf"))
        return torch.einsum("bhs,bshd->bhd", scores.softmax(-1), values)

    args = tuple(torch.randn(batch, heads, dim, device=device) for _ in range(3))
    return decode, args


def speculative_verify(device):
    def verify(draft_tokens, draft_probs, target_probs, uniform):
        p = target_probs.gather(-1, draft_tokens.unsqueeze(-1)).squeeze(-1)
        q = draft_probs.gather(-1, draft_tokens.unsqueeze(-1)).squeeze(-1)
        accepted = (uniform < p / q.clamp_min(1e-9)).long().cumprod(-1)
        n = accepted.sum(-1, keepdim=True)
        residual = (target_probs - draft_probs).clamp_min(0)
        where = n.clamp_max(draft_tokens.shape[1] - 1)
        row = residual.gather(1, where.unsqueeze(-1).expand(-1, -1, residual.shape[-1])).squeeze(1)
        bonus = row.argmax(-1, keepdim=True)
        return n, torch.where(accepted.bool(), draft_tokens, bonus)

    tokens = torch.randint(0, 20, (2, 4), device=device)
    draft = torch.rand(2, 4, 20, device=device).softmax(-1)
    target = torch.rand(2, 4, 20, device=device).softmax(-1)
    return verify, (tokens, draft, target, torch.rand(2, 4, device=device))


def rolling_cache(device):
    class Cache:
        def __init__(self):
            self.key = torch.zeros(1, 64, 8, device=device)
            self.seen = 0

        def update(self, key):
            n = key.shape[1]
            self.key[:, self.seen : self.seen + n] = key  # guilty: a position of the host
            self.seen += n  # guilty: advances on the host
            return self.key[:, : self.seen]  # guilty: a length of the host

    cache = Cache()
    static_x = torch.randn(1, 1, 8, device=device)

    @torch.no_grad()
    def step():
        return cache.update(static_x).sum(1)

    return step


def pinned_slots_from_a_list(device):
    """The host writes the slots in the captured code: a replay copies the old ones."""
    slots = torch.zeros(4, dtype=torch.long, pin_memory=device != "cpu")
    device_slots = torch.zeros(4, dtype=torch.long, device=device)
    cache = torch.zeros(64, 8, device=device)
    static_k = torch.randn(4, 8, device=device)
    free = list(range(63, -1, -1))

    def step():
        for i in range(4):
            slots[i] = free.pop() if free else 0  # guilty: only the capture fills them
        device_slots.copy_(slots, non_blocking=True)  # guilty: copies what the capture filled
        cache[device_slots] = static_k
        return cache.sum(1).clone()

    return step


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * beta1 + p.grad * (1 - beta1)), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - beta2)


def _make(device, *sizes):
    torch.manual_seed(0)
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers[:-1]).to(device)


def lion(device):
    model = _make(device, 8, 16, 4)
    optimizer = Lion(model.parameters())
    static_x, static_y = torch.randn(5, 8, device=device), torch.randn(5, 4, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def sharpness_aware(device):
    model = _make(device, 8, 16, 4)
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    static_x, static_y = torch.randn(5, 8, device=device), torch.randn(5, 4, device=device)

    def loss_of():
        return functional.mse_loss(model(static_x), static_y)

    def step():
        params = list(model.parameters())
        grads = torch.autograd.grad(loss_of(), params)
        with torch.no_grad():
            norm = torch.stack([g.norm() for g in grads]).norm() + 1e-12
            moves = [g * (0.05 / norm) for g in grads]
            torch._foreach_add_(params, moves)
        base.zero_grad()
        loss = loss_of()
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(params, moves)
        base.step()
        return loss.detach()

    return step


def muon(device):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 16, device=device))
    momentum = torch.zeros_like(weight)
    static_x = torch.randn(5, 8, device=device)

    def newton_schulz(g, steps=5):
        x = g / (g.norm() + 1e-7)
        for _ in range(steps):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x

    def step():
        loss = (static_x @ weight).square().mean()
        (grad,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            momentum.mul_(0.95).add_(grad)
            weight.add_(newton_schulz(grad.add(momentum, alpha=0.95)), alpha=-0.02)
        return loss.detach()

    return step


class MyAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1  # guilty: counts on the host
                state["m"].lerp_(p.grad, 0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                size = (
                    group["lr"] * math.sqrt(1 - 0.999 ** state["step"]) / (1 - 0.9 ** state["step"])
                )  # guilty: a number of the host
                p.addcdiv_(
                    state["m"], state["v"].sqrt().add_(1e-8), value=-size
                )  # guilty: a number of the host


def own_adam(device):
    model = _make(device, 8, 16, 4)
    optimizer = MyAdam(model.parameters())
    static_x = torch.randn(5, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(static_x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Lookahead:
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.calls = optimizer, k, alpha, 0
        self.params = [p for g in optimizer.param_groups for p in g["params"]]
        self.slow = [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.calls += 1  # guilty: counts on the host
        if self.calls % self.k == 0:  # guilty: every fifth call
            torch._foreach_lerp_(self.slow, self.params, self.alpha)
            torch._foreach_copy_(self.params, self.slow)


def lookahead(device):
    model = _make(device, 8, 16, 4)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    static_x = torch.randn(5, 8, device=device)

    def step():
        optimizer.optimizer.zero_grad()
        loss = model(static_x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ddim_with_device_steps(device):
    betas = torch.linspace(1e-4, 0.02, 50)
    alphas = torch.cumprod(1 - betas, 0).to(device)
    unet = nn.Conv2d(3, 3, 3, padding=1).to(device)
    t = torch.full((1,), 49, dtype=torch.long, device=device)
    latent = torch.randn(1, 3, 8, 8, device=device)
    static_noise = torch.randn(1, 3, 8, 8, device=device)

    @torch.no_grad()
    def denoise():
        eps = unet(torch.cat([latent, static_noise]))
        cond, uncond = eps.chunk(2)
        eps = uncond + 7.5 * (cond - uncond)
        a = alphas[t].view(-1, 1, 1, 1)
        before = alphas[(t - 1).clamp_min(0)].view(-1, 1, 1, 1)
        x0 = (latent - (1 - a).sqrt() * eps) / a.sqrt()
        latent.copy_(before.sqrt() * x0.clamp(-1, 1) + (1 - before).sqrt() * eps)
        t.sub_(1).clamp_min_(0)
        return latent.clone()

    return denoise


def suppression_by_a_mask(device):
    def detect(boxes, scores):
        order = scores.argsort(descending=True)
        boxes = boxes[order]
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        lt = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        rb = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        inter = (rb - lt).clamp_min(0).prod(-1)
        iou = (inter / (area[:, None] + area - inter)).triu(1)
        keep = iou.amax(0) < 0.5
        return torch.masked_select(scores[order], keep)  # guilty: its size depends on values

    xy = torch.rand(10, 2, device=device)
    return detect, (torch.cat([xy, xy + 0.3], 1), torch.rand(10, device=device))


def _edges(device):
    torch.manual_seed(0)
    return torch.randint(0, 6, (2, 14), device=device)


def attention_over_edges(device):
    edge_index, nodes = _edges(device), 6
    att = nn.Parameter(torch.randn(16, device=device) * 0.1)

    def forward(x):
        row, col = edge_index
        score = functional.leaky_relu((torch.cat([x[row], x[col]], -1) * att).sum(-1), 0.2)
        top = torch.full((nodes,), float("-inf"), device=x.device).scatter_reduce(
            0, col, score.detach(), "amax"
        )
        weight = (score - top[col]).exp()
        total = torch.zeros(nodes, device=x.device).scatter_add(0, col, weight)
        alpha = weight / (total[col] + 1e-16)
        return torch.zeros_like(x).index_add(0, col, x[row] * alpha.unsqueeze(-1))

    return forward, (torch.randn(6, 8, device=device, requires_grad=True),)


def interactions_by_lists(device):
    rows, cols = torch.tril_indices(4, 4, -1).tolist()

    def interact(dense, sparse):
        z = torch.cat([dense.unsqueeze(1), sparse], 1)
        z = torch.bmm(z, z.transpose(1, 2))
        return torch.cat([dense, z[:, rows, cols]], -1)  # guilty: copies the lists

    return interact, (torch.randn(2, 8, device=device), torch.randn(2, 3, 8, device=device))


def experts_with_a_capacity(device):
    torch.manual_seed(0)
    experts, capacity = 4, 3
    gate = nn.Linear(8, experts).to(device)
    weight = nn.Parameter(torch.randn(experts, 8, 8, device=device) * 0.1)

    def moe(x):
        top, expert = gate(x).softmax(-1).max(-1)
        onehot = (expert.unsqueeze(1) == torch.arange(experts, device=x.device)).long()
        slot = ((onehot.cumsum(0) - 1) * onehot).sum(1)
        fits = slot < capacity
        flat = torch.where(fits, expert * capacity + slot, experts * capacity)
        buffer = x.new_zeros(experts * capacity + 1, 8).index_copy(0, flat, x)
        y = torch.bmm(buffer[:-1].view(experts, capacity, 8), weight).view(-1, 8)
        y = torch.cat([y, y.new_zeros(1, 8)])
        return y[flat] * (top * fits).unsqueeze(-1)

    return moe, (torch.randn(6, 8, device=device),)


def delayed_scaling(device):
    history = torch.ones(4, device=device)
    weight = torch.randn(8, 8, device=device)
    static_x = torch.randn(3, 8, device=device)

    @torch.no_grad()
    def step():
        scale = 448.0 / history.amax()
        x8 = (static_x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        history.copy_(torch.roll(history, 1))
        history[0] = static_x.abs().amax()
        return (x8.to(torch.float32) / scale) @ weight

    return step


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bits):
        ctx.bits = bits
        return torch.round(x * 2**bits) / 2**bits

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def quantized_by_channel(device):
    w = nn.Parameter(torch.randn(8, 8, device=device))
    scale = torch.rand(8, device=device) + 0.1
    zero = torch.zeros(8, dtype=torch.int32, device=device)

    def forward(x):
        weight = torch.fake_quantize_per_channel_affine(  # guilty: reads the zero points
            w, scale, zero, 0, -128, 127
        )
        return RoundSTE.apply(functional.linear(x, weight), 4)

    return forward, (torch.randn(3, 8, device=device),)


def _mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def clipped_per_sample(device):
    from torch.func import functional_call, grad, vmap

    model = _mlp().to(device)
    params = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p, x, y):
        return functional.mse_loss(functional_call(model, p, (x.unsqueeze(0),)).squeeze(0), y)

    def dp_sgd(x, y):
        grads = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        clip = (1.0 / (norms + 1e-6)).clamp_max(1.0)
        return {k: torch.einsum("b,b...->...", clip, g) for k, g in grads.items()}

    return dp_sgd, (torch.randn(5, 8, device=device), torch.randn(5, 4, device=device))


def rounds_every_other_call(device):
    """A hook that quantizes every other call."""
    model = _mlp().to(device)
    state = {"calls": 0}

    def every_other(module, args, output):
        state["calls"] += 1  # guilty: counts on the host
        if state["calls"] % 2:  # guilty: decides which ops run
            return output.round(decimals=2)
        return output

    model[0].register_forward_hook(every_other)
    return model, (torch.randn(5, 8, device=device),)


def normalizes_by_numpy(device):
    mean = np.array([0.4, 0.5, 0.6], dtype=np.float32)
    std = np.float64(0.22)
    shift = torch.from_numpy(mean).to(device).view(1, 3, 1, 1)

    def normalize(x):
        return (x - shift) / std * np.sqrt(2.0)

    return normalize, (torch.randn(2, 3, 4, 4, device=device),)


def weighs_by_a_host_copy(device):
    """The host reads the pinned copy at once: in a capture nothing was copied."""
    host = torch.zeros(4).pin_memory() if device != "cpu" else torch.zeros(4)

    def forward(x):
        host.copy_(x.mean(1), non_blocking=True)  # guilty: nothing waits for it
        weight = host.numpy().max()  # guilty: read before it arrives
        return x * float(weight)  # guilty: a number of the host

    return forward, (torch.randn(4, 8, device=device),)


def rotates_its_layers(device):
    local = threading.local()
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).to(device)

    def forward(x):
        local.turn = getattr(local, "turn", 0) + 1  # guilty: counts on the host
        for i in range(4):
            x = layers[(i + local.turn // 64) % 4](x)  # guilty: the layers of the capture
        return x

    return forward, (torch.randn(4, 8, device=device),)


def beam_step(device):
    beams, vocab = 3, 11
    cache = torch.zeros(beams, 8, 4, device=device)
    scores = torch.zeros(beams, device=device)
    tokens = torch.zeros(beams, 8, dtype=torch.long, device=device)
    position = torch.zeros(1, dtype=torch.long, device=device)
    emb = nn.Embedding(vocab, 4).to(device)
    head = nn.Linear(4, vocab).to(device)

    @torch.no_grad()
    def step():
        last = tokens.index_select(1, position.clamp_max(7)).squeeze(1)
        cache.index_copy_(1, position.clamp_max(7), emb(last).unsqueeze(1))
        logp = head(cache.sum(1)).log_softmax(-1)
        total = (scores.unsqueeze(1) + logp).flatten()
        best, flat = total.topk(beams)
        beam, token = flat // vocab, flat % vocab
        cache.copy_(cache.index_select(0, beam))
        tokens.copy_(tokens.index_select(0, beam))
        position.add_(1).remainder_(8)
        tokens.index_copy_(1, position, token.unsqueeze(1))
        scores.copy_(best - best.max())
        return tokens.clone(), scores.clone()

    return step


def forces_by_autograd(device):
    net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1)).to(device)
    position = torch.randn(5, 3, device=device)
    velocity = torch.zeros(5, 3, device=device)
    pairs = torch.triu_indices(5, 5, 1).to(device)

    def step():
        x = position.detach().requires_grad_()
        distance = (x[pairs[0]] - x[pairs[1]]).square().sum(-1, keepdim=True).add(1e-3).sqrt()
        energy = net(distance).sum()
        (grad,) = torch.autograd.grad(energy, x)
        velocity.sub_(grad, alpha=0.01)
        position.add_(velocity, alpha=0.01)
        return energy.detach(), position.clone()

    return step


def codebook_with_averages(device):
    codebook = torch.randn(8, 4, device=device)
    usage = torch.ones(8, device=device)
    total = codebook.clone()
    static_z = torch.randn(16, 4, device=device)

    @torch.no_grad()
    def step():
        distance = torch.cdist(static_z, codebook)
        code = distance.argmin(-1)
        onehot = functional.one_hot(code, 8).to(static_z.dtype)
        usage.mul_(0.99).add_(onehot.sum(0), alpha=0.01)
        total.mul_(0.99).add_(onehot.T @ static_z, alpha=0.01)
        codebook.copy_(total / usage.clamp_min(1e-5).unsqueeze(-1))
        return codebook[code].clone(), usage.clone()

    return step


def transmittance(device):
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    bins = torch.linspace(2.0, 6.0, 9, device=device)

    def render(origin, direction):
        mid = (bins[1:] + bins[:-1]) / 2
        points = origin[:, None] + direction[:, None] * mid[None, :, None]
        raw = net(points)
        alpha = 1 - torch.exp(-functional.softplus(raw[..., 3]) * (bins[1:] - bins[:-1]))
        trans = torch.cumprod(
            torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1
        )[:, :-1]  # guilty: its backward reads a value
        weight = alpha * trans
        cdf = torch.cumsum(weight.detach() / (weight.detach().sum(-1, keepdim=True) + 1e-5), -1)
        u = torch.rand(cdf.shape[0], 4, device=cdf.device)
        fine = mid[torch.searchsorted(cdf, u).clamp_max(7)]
        return (weight.unsqueeze(-1) * raw[..., :3].sigmoid()).sum(1), fine

    return render, (
        torch.randn(4, 3, device=device),
        functional.normalize(torch.randn(4, 3, device=device), dim=-1),
    )


def chunks_by_free_memory(device):
    lin = nn.Linear(5, 5).to(device)

    def forward(x):
        free, _ = torch.cuda.mem_get_info()  # guilty: a number of the host
        chunks = 1 if free > 2**20 else 4  # guilty: decides the chunks
        return torch.cat(
            [lin(part) for part in x.chunk(chunks)]
        )  # guilty: as many chunks as in the capture

    return forward, (torch.randn(8, 5, device=device),)


def micro_steps(device):
    """Accelerate's: the optimizer steps every fourth call."""
    model = nn.Linear(5, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    static_x = torch.randn(4, 5, device=device)

    class Accumulator:
        micro = 0

        @property
        def sync_gradients(self):
            return self.micro % 4 == 0

        def step(self):
            self.micro += 1  # guilty: counts on the host
            loss = model(static_x).square().mean() / 4
            loss.backward()
            if self.sync_gradients:  # guilty: every fourth call
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

    return Accumulator().step


def _warmup(peak, steps):
    n = 0
    while True:
        n += 1  # guilty: counts on the host
        yield peak * min(1.0, n / steps)  # guilty: a number of the host


def rates_of_a_generator(device):
    schedule = _warmup(0.1, 1000)
    weight = torch.ones(4, device=device)

    def step():
        rate = next(schedule)  # guilty: moves on only in the capture
        weight.sub_(weight * rate)  # guilty: the rate of the capture
        return weight.clone()

    return step


def configuration_file(device):
    """A hot-reloaded configuration."""
    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps({"scale": 0.5}))

    def forward(x):
        config = json.loads(path.read_text())  # guilty: read in the capture only
        return x * config["scale"]  # guilty: a number of the host

    return forward, (torch.randn(2, 5, device=device),)


def type_by_phase(device):
    phase = {"warm": 0}

    def forward(x):
        phase["warm"] += 1  # guilty: counts on the host
        dtype = torch.bfloat16 if phase["warm"] > 400 else torch.float32  # guilty: decides the type
        return x.to(dtype).tanh().float()  # guilty: the type of the capture

    return forward, (torch.randn(2, 5, device=device),)


def layers_of_a_copied_configuration(device):
    config = types.SimpleNamespace(heads=1, dropout=0.0, layers=[{"act": "relu"}, {"act": "tanh"}])
    lin = nn.Linear(5, 5).to(device)

    def forward(x):
        local = copy.deepcopy(config)
        while local.layers:
            layer = local.layers.pop(0)
            x = getattr(torch, layer["act"])(lin(x))
        return x

    return forward, (torch.randn(2, 5, device=device),)


def progress_bar(device):
    class Bar:
        def __init__(self):
            self.n, self.rate, self.last = 0, deque(maxlen=10), time.perf_counter()

        def update(self):
            self.n += 1
            now = time.perf_counter()
            self.rate.append(1 / max(now - self.last, 1e-9))
            self.last = now
            if self.n % 1000 == 0:
                log.warning("%d steps, %.1f/s", self.n, sum(self.rate) / len(self.rate))

    bar = Bar()
    lin = nn.Linear(5, 5).to(device)

    def forward(x):
        y = lin(x)
        bar.update()
        return y

    return forward, (torch.randn(2, 5, device=device),)

"""Reinforcement learning, graph networks, recommenders, quantized and streamed code."""

import collections
import contextlib
import contextvars
import functools
import math

import numpy as np
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional


def numpy_permutation(device):
    rng = np.random.default_rng(0)
    projector = nn.Linear(16, 8).to(device)

    def vicreg(x):
        z = projector(x)
        permutation = rng.permutation(len(x))  # guilty: drawn and copied by NumPy
        shuffled = z[permutation]  # guilty: drawn and copied by NumPy
        std = (z.var(dim=0) + 1e-4).sqrt()
        return functional.mse_loss(z, shuffled) + functional.relu(1 - std).mean()

    return vicreg, (torch.randn(16, 16, device=device),)


def cosine(base, final, step, total):
    return final + 0.5 * (base - final) * (
        1 + math.cos(math.pi * step / total)
    )  # guilty: follows a count


def dino_weight_decay_schedule(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(1e-2, device=device), capturable=True)
    state = {"step": 0}
    x = torch.randn(4, 16, device=device)

    def step():
        decay = cosine(0.04, 0.4, state["step"], 100)  # guilty: follows a count
        optimizer.param_groups[0]["weight_decay"] = decay  # guilty: follows a count
        state["step"] += 1  # guilty: follows a count
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()  # guilty: follows a count
        return loss

    return step


class Accuracy:
    """In the manner of torchmetrics: states that update() adds to and compute() reads."""

    def __init__(self, device):
        self.correct = torch.zeros((), device=device)
        self.total = 0

    def update(self, preds, target):
        self.correct += (preds.argmax(-1) == target).sum()
        self.total += target.numel()  # guilty: counts on the host

    def compute(self):
        return self.correct / self.total  # guilty: counts on the host

    def forward(self, preds, target):
        self.update(preds, target)
        return self.compute()


def metric_with_host_total(device):
    head = nn.Linear(16, 4).to(device)
    metric = Accuracy(device)

    @torch.no_grad()
    def evaluate(x, y):
        return metric.forward(head(x), y)

    return evaluate, (torch.randn(8, 16, device=device), torch.randint(4, (8,), device=device))


def while_loop_newton(device):
    def step(x):
        def cond(i, y):
            return i < 6

        def body(i, y):
            return i + 1, 0.5 * (y + x / y)

        count = torch.zeros((), dtype=torch.int64, device=device)
        return while_loop(cond, body, (count, x.clone()))[1]  # guilty: reads the condition

    return step, (torch.rand(16, device=device) + 0.5,)


def gcn_sparse_adjacency(device):
    nodes = 20
    edges = torch.randint(nodes, (2, 60), device=device)
    lin = nn.Linear(8, 8).to(device)

    @torch.no_grad()
    def propagate(x, weight):
        adjacency = torch.sparse_coo_tensor(edges, weight, (nodes, nodes), check_invariants=False)
        return torch.sparse.mm(adjacency, lin(x))  # guilty: sorts and counts the indices

    return propagate, (torch.randn(nodes, 8, device=device), torch.rand(60, device=device))


def jagged_to_padded(device):
    offsets = torch.tensor([0, 3, 4, 9, 12], device=device)
    lin = nn.Linear(16, 16).to(device)

    @torch.no_grad()
    def pool(values):
        nt = torch.nested.nested_tensor_from_jagged(lin(values), offsets)
        padded = torch.nested.to_padded_tensor(nt, 0.0)
        return padded.amax(1)

    return pool, (torch.randn(12, 16, device=device),)


def dynamic_int8_linear(device):
    lin = nn.Linear(64, 32).to(device)
    w_scale = lin.weight.detach().abs().amax(1, keepdim=True) / 127
    w_int8 = (lin.weight.detach() / w_scale).round().to(torch.int8)

    @torch.no_grad()
    def quantized(x):
        scale = x.abs().max().div(127).tolist()  # guilty: the scale is read
        x_int8 = (x / scale).round().clamp(-128, 127)
        return x_int8 @ w_int8.t().float() * scale * w_scale.t()

    return quantized, (torch.randn(16, 64, device=device),)


class Fp8Linear(nn.Module):
    """Delayed scaling: the scale follows every `interval` steps."""

    def __init__(self, size, interval):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size) * 0.1)
        self.register_buffer("amax", torch.ones(()))
        self.register_buffer("scale", torch.ones(()))
        self.interval = interval
        self._iteration = 0

    def forward(self, x):
        self._iteration += 1  # guilty: every sixteenth call
        self.amax.copy_(torch.maximum(self.amax * 0.95, x.detach().abs().max()))
        if self._iteration % self.interval == 1:  # guilty: every sixteenth call
            self.scale.copy_(448.0 / self.amax)
        fp8 = (x * self.scale).to(torch.float8_e4m3fn)
        return (fp8.to(torch.float32) / self.scale) @ self.weight.t()


def fp8_delayed_scaling(device):
    return Fp8Linear(32, 16).to(device), (torch.randn(8, 32, device=device),)


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, frequency=10):
        super().__init__(params, {"lr": lr, "frequency": frequency})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["precond"] = torch.eye(p.shape[0], device=p.device) * 1e-3
                    state["scale"] = torch.ones_like(state["precond"])
                state["precond"].addmm_(p.grad, p.grad.t())
                if state["step"] % group["frequency"] == 0:  # guilty: every tenth call
                    state["scale"].copy_(state["precond"].diagonal().rsqrt().diag())
                state["step"] += 1  # guilty: every tenth call
                p.add_(state["scale"] @ p.grad, alpha=-group["lr"])


def shampoo_frequency(device):
    weight = nn.Parameter(torch.randn(8, 8, device=device))
    optimizer = Shampoo([weight])
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = (x @ weight).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class Timer:
    def __init__(self):
        self.times = collections.defaultdict(list)

    @contextlib.contextmanager
    def span(self, name):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        try:
            yield
        finally:
            end.record()
            end.synchronize()  # guilty: waits for the event
            self.times[name].append(start.elapsed_time(end))


def span_timer(device):
    timer = Timer()
    model = nn.Linear(16, 16).to(device)

    @torch.no_grad()
    def forward(x):
        with timer.span("forward"):
            return model(x)

    return forward, (torch.randn(4, 16, device=device),)


class FrameStack:
    def __init__(self, frames, shape, device):
        self.frames = collections.deque(
            [torch.zeros(shape, device=device) for _ in range(frames)], maxlen=frames
        )

    def push(self, frame):
        self.frames.append(frame.clone())  # guilty: another tensor in each call
        return torch.stack(list(self.frames), dim=1)  # guilty: another tensor in each call


def atari_frame_stack(device):
    stack = FrameStack(4, (2, 16), device)
    policy = nn.Linear(64, 6).to(device)

    @torch.no_grad()
    def act(frame):
        return policy(stack.push(frame).flatten(1))

    return act, (torch.randn(2, 16, device=device),)


class ReplayBuffer:
    def __init__(self, capacity, dim, device):
        self.capacity, self.pos, self.full = capacity, 0, False
        self.observations = torch.zeros(capacity, dim, device=device)

    def add(self, batch):
        n = len(batch)
        self.observations[self.pos : self.pos + n] = batch  # guilty: a position on the host
        self.pos += n  # guilty: a position on the host
        if self.pos >= self.capacity:  # guilty: a position on the host
            self.full, self.pos = True, 0  # guilty: a position on the host

    def sample(self, n):
        upper = self.capacity if self.full else max(self.pos, 1)  # guilty: a position on the host
        index = torch.randint(
            0, upper, (n,), device=self.observations.device
        )  # guilty: a position on the host
        return self.observations[index]


def sac_replay_buffer(device):
    buffer = ReplayBuffer(1024, 8, device)
    critic = nn.Linear(8, 1).to(device)

    @torch.no_grad()
    def collect(batch):
        buffer.add(batch)
        critic(buffer.sample(16))
        return buffer.observations.mean(0)

    return collect, (torch.randn(4, 8, device=device),)


class PingPong:
    def __init__(self, shape, device):
        self.buffers = [torch.zeros(shape, device=device) for _ in range(2)]
        self.current = 0

    def swap(self):
        self.current ^= 1  # guilty: the buffers alternate
        return self.buffers[self.current], self.buffers[
            self.current ^ 1
        ]  # guilty: the buffers alternate


def lattice_boltzmann_ping_pong(device):
    state = PingPong((32, 32), device)

    @torch.no_grad()
    def advance(source):
        write, read = state.swap()  # guilty: the buffers alternate
        torch.add(0.9 * read, source, out=write)
        return write.sum()

    return advance, (torch.randn(32, 32, device=device),)


class GrowingCache:
    def __init__(self):
        self.key = self.value = None

    def update(self, key, value):
        if self.key is None:
            self.key, self.value = key, value
        else:
            self.key = torch.cat([self.key, key], dim=2)  # guilty: the cache grows
            self.value = torch.cat([self.value, value], dim=2)  # guilty: the cache grows
        return self.key, self.value


def dynamic_cache(device):
    cache = GrowingCache()
    qkv = nn.Linear(32, 96).to(device)

    @torch.no_grad()
    def attend(x):
        q, k, v = qkv(x).view(1, 1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        k, v = cache.update(k, v)
        return functional.scaled_dot_product_attention(q, k, v)

    return attend, (torch.randn(1, 1, 32, device=device),)


def prefetch_overwrites(device):
    side = torch.cuda.Stream()
    layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(3)).to(device)
    staged = torch.zeros(512, 512, device=device)
    host = [layer.weight.detach().clone() for layer in layers]

    @torch.no_grad()
    def offloaded(x):
        main = torch.cuda.current_stream()
        for weight in host:
            side.wait_stream(main) if weight is host[0] else None
            with torch.cuda.stream(side):
                staged.copy_(weight)  # guilty: nothing waits for the reader
            main.wait_stream(side)
            x = (x @ staged.t()).tanh()  # guilty: nothing waits for the reader
        return x

    return offloaded, (torch.randn(256, 512, device=device),)


@functools.cache
def alibi(heads, length, device):
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)]).to(
        device
    )  # guilty: the length grows
    return slopes[:, None, None] * torch.arange(length, device=device)


def alibi_growing_length(device):
    state = {"length": 4}
    q = torch.randn(4, 1, 8, device=device)

    @torch.no_grad()
    def score(keys):
        state["length"] += 1  # guilty: the length grows
        bias = alibi(4, state["length"], q.device)  # guilty: the length grows
        padded = functional.pad(
            bias, (0, keys.shape[1] - bias.shape[-1]), value=-1e9
        )  # guilty: the length grows
        return (q @ keys.transpose(1, 2) + padded).softmax(-1)

    return score, (torch.randn(4, 128, 8, device=device),)


def pinned_round_trip(device):
    staging = torch.zeros(32, pin_memory=True)
    embed = nn.Embedding(32, 16).to(device)
    head = nn.Linear(16, 32).to(device)

    @torch.no_grad()
    def decode(hidden):
        logits = head(hidden)
        staging.copy_(logits[0], non_blocking=True)  # guilty: read on the host
        token = int(staging.argmax())  # guilty: read on the host
        return embed.weight[token] + logits.mean()  # guilty: read on the host

    return decode, (torch.randn(4, 16, device=device),)


class CurriculumDrop(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.p = [0.0] * layers

    def ramp(self):
        self.p = [
            min(0.5, p + 0.01 * (i + 1)) for i, p in enumerate(self.p)
        ]  # guilty: raised in each call

    def forward(self, x):
        for p, block in zip(self.p, self.blocks, strict=False):
            noise = torch.rand(x.shape[0], 1, device=x.device)
            x = x + block(x) * (noise >= p) / (1 - p)  # guilty: raised in each call
        if self.training:
            self.ramp()  # guilty: raised in each call
        return x


def curriculum_stochastic_depth(device):
    return CurriculumDrop(3).to(device), (torch.randn(8, 16, device=device),)


def packed_lstm(device):
    lstm = nn.LSTM(8, 16, batch_first=True).to(device)

    def encode(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x,
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,  # guilty: lengths on the host
        )
        out, _ = lstm(packed)
        return out.data

    return encode, (torch.randn(3, 5, 8, device=device), torch.tensor([5, 2, 3], device=device))


def pyg_softmax_without_size(device):
    att = nn.Linear(16, 1).to(device)

    def softmax(src, index, num_nodes=None):
        size = int(index.max()) + 1 if num_nodes is None else num_nodes  # guilty: the size is read
        peak = src.new_full((size,), float("-inf")).scatter_reduce_(0, index, src, "amax")
        out = (src - peak[index]).exp()
        return out / out.new_zeros(size).index_add_(0, index, out)[index]

    @torch.no_grad()
    def gat(x, row, col):
        return x.new_zeros(x.shape).index_add_(
            0, row, x[col] * softmax(att(x[col])[:, 0], row)[:, None]
        )

    return gat, (
        torch.randn(10, 16, device=device),
        torch.randint(10, (40,), device=device),
        torch.randint(10, (40,), device=device),
    )


TEMPERATURE = contextvars.ContextVar("temperature", default=1.0)


def sigmas(n, low=0.03, high=14.6, rho=7.0):
    ramp = np.linspace(0, 1, n)
    values = (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    yield from zip(values.tolist(), [*values[1:].tolist(), 0.0], strict=False)


def whole_euler_loop(device):
    """All steps of the sampler are in the graph: its generator begins anew in each call."""
    unet = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))
    unet = unet.to(device).eval()

    @torch.no_grad()
    def sample(x):
        x = x * 14.6
        for sigma, following in sigmas(5):
            denoised = x - sigma * unet(x / math.sqrt(sigma**2 + 1))
            x = x + (x - denoised) / sigma * (following - sigma)
        return x

    return sample, (torch.randn(1, 4, 16, 16, device=device),)


def contextvar_set_and_reset(device):
    head = nn.Linear(16, 32).to(device)

    def scaled(x):
        return head(x) / TEMPERATURE.get()

    @torch.no_grad()
    def sharpen(x):
        token = TEMPERATURE.set(0.7)
        try:
            return scaled(x).softmax(-1)
        finally:
            TEMPERATURE.reset(token)

    return sharpen, (torch.randn(4, 16, device=device),)


class Mean:
    def __init__(self, device):
        self.value = torch.zeros((), device=device)
        self.weight = torch.zeros((), device=device)

    def update(self, value):
        self.value += value.sum()
        self.weight += value.numel()

    def compute(self):
        return self.value / self.weight


def metric_on_device(device):
    head = nn.Linear(16, 4).to(device)
    metrics = {"accuracy": Mean(device), "loss": Mean(device)}

    @torch.no_grad()
    def evaluate(x, y):
        logits = head(x)
        metrics["accuracy"].update((logits.argmax(-1) == y).float())
        metrics["loss"].update(functional.cross_entropy(logits, y, reduction="none"))
        return {name: metric.compute() for name, metric in metrics.items()}

    return evaluate, (torch.randn(8, 16, device=device), torch.randint(4, (8,), device=device))


def newton_fixed_iterations(device):
    def solve(matrix):
        identity = torch.eye(matrix.shape[-1], device=matrix.device)
        norm = matrix.square().sum((-1, -2), keepdim=True).sqrt()
        y, z = matrix / norm, identity.expand_as(matrix)
        for _ in range(8):
            t = 0.5 * (3.0 * identity - z @ y)
            y, z = y @ t, t @ z
        return y * norm.sqrt()

    a = torch.randn(2, 6, 6, device=device)
    return solve, (a @ a.mT + torch.eye(6, device=device),)


def gat_fixed_nodes(device):
    nodes, heads = 20, 2

    class Gat(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, heads * 8, bias=False)
            self.source = nn.Parameter(torch.randn(heads, 8))
            self.target = nn.Parameter(torch.randn(heads, 8))

        def forward(self, x, edge_index):
            row, col = edge_index
            h = self.lin(x).view(-1, heads, 8)
            e = (h * self.source).sum(-1)[col] + (h * self.target).sum(-1)[row]
            e = functional.leaky_relu(e, 0.2)
            index = row[:, None].expand_as(e)
            peak = e.new_full((nodes, heads), -1e30).scatter_reduce(0, index, e.detach(), "amax")
            e = (e - peak[row]).exp()
            total = torch.zeros(nodes, heads, device=x.device).index_add(0, row, e)
            alpha = e / (total[row] + 1e-16)
            out = torch.zeros(nodes, heads, 8, device=x.device)
            return out.index_add(0, row, alpha[..., None] * h[col]).flatten(1)

    return Gat().to(device), (
        torch.randn(nodes, 8, device=device),
        torch.randint(nodes, (2, 60), device=device),
    )


def jagged_layers(device):
    offsets = torch.tensor([0, 3, 4, 9, 12], device=device)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(device)

    @torch.no_grad()
    def forward(values):
        nt = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=1, max_seqlen=5)
        nt = mlp(nt) + nt
        return nt.values()

    return forward, (torch.randn(12, 16, device=device),)


class SpectralConv2d(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(
            torch.randn(channels, channels, modes, modes, dtype=torch.cfloat) * 0.1
        )

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight)
        return torch.fft.irfft2(out, s=x.shape[-2:])


def fourier_neural_operator(device):
    net = nn.Sequential(SpectralConv2d(4, 3), nn.GELU(), SpectralConv2d(4, 3)).to(device)
    return net, (torch.randn(2, 4, 16, 16, device=device),)


class QuantizedWeight(torch.Tensor):
    """int8 with a scale per row, as a tensor subclass: linear() dequantizes."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=scale.dtype, device=data.device
        )

    def __init__(self, data, scale):
        self.data_int8, self.row_scale = data, scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is functional.linear:
            x, weight, *rest = args
            bias = rest[0] if rest else (kwargs or {}).get("bias")
            out = (x @ weight.data_int8.t().to(x.dtype)) * weight.row_scale.t()
            return out if bias is None else out + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].data_int8, args[0].row_scale)
        raise NotImplementedError(func)


def int8_weight_subclass(device):
    linear = nn.Linear(32, 16).to(device)
    scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    data = (linear.weight.detach() / scale).round().to(torch.int8)
    linear.weight = nn.Parameter(QuantizedWeight(data, scale), requires_grad=False)

    @torch.no_grad()
    def forward(x):
        return linear(x)

    return forward, (torch.randn(8, 32, device=device),)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "exp_avg" not in self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            moments = [self.state[p]["exp_avg"] for p in params]
            first, second = group["betas"]
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            update = torch._foreach_lerp(moments, grads, 1 - first)
            torch._foreach_sign_(update)
            torch._foreach_add_(params, update, alpha=-group["lr"])
            torch._foreach_lerp_(moments, grads, 1 - second)


def lion_foreach(device):
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1)).to(device)
    optimizer = Lion(model.parameters())
    x, y = torch.randn(8, 16, device=device), torch.randn(8, 1, device=device)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = functional.huber_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def parallel_branches(device):
    attention = nn.Linear(64, 64).to(device)
    mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    side = torch.cuda.Stream()
    fork, join = torch.cuda.Event(), torch.cuda.Event()

    @torch.no_grad()
    def parallel(x):
        main = torch.cuda.current_stream()
        fork.record(main)
        with torch.cuda.stream(side):
            side.wait_event(fork)
            b = mlp(x)
            join.record(side)
        a = attention(x)
        main.wait_event(join)
        return x + a + b

    return parallel, (torch.randn(16, 64, device=device),)


def pinned_input_buffer(device):
    staging = torch.zeros(8, dtype=torch.int64, pin_memory=True)
    ids = torch.zeros(8, dtype=torch.int64, device=device)
    embed = nn.Embedding(50, 16).to(device)
    head = nn.Linear(16, 50).to(device)

    @torch.no_grad()
    def step():
        ids.copy_(staging, non_blocking=True)
        return head(embed(ids)).argmax(-1)

    return step


def ring_buffer_on_device(device):
    capacity, batch = 64, 4
    observations = torch.zeros(capacity, 8, device=device)
    pointer = torch.zeros((), dtype=torch.int64, device=device)
    filled = torch.zeros((), dtype=torch.int64, device=device)
    offsets = torch.arange(batch, device=device)

    @torch.no_grad()
    def add_and_sample(obs):
        observations.index_copy_(0, (pointer + offsets) % capacity, obs)
        pointer.add_(batch).remainder_(capacity)
        filled.add_(batch).clamp_(max=capacity)
        index = (torch.rand(16, device=obs.device) * filled).long()
        return observations[index]

    return add_and_sample, (torch.randn(batch, 8, device=device),)


def top_p_sampler(device):
    head = nn.Linear(32, 100).to(device)

    @torch.inference_mode()
    def sample(hidden, temperature, p):
        logits = head(hidden) / temperature[:, None]
        probs, order = logits.softmax(-1).sort(-1, descending=True)
        drop = probs.cumsum(-1) - probs > p[:, None]
        probs[drop] = 0.0
        probs.div_(probs.sum(-1, keepdim=True))
        noise = torch.empty_like(probs).exponential_(1)
        pick = probs.div(noise).argmax(-1, keepdim=True)
        return order.gather(-1, pick).squeeze(-1)

    return sample, (
        torch.randn(4, 32, device=device),
        torch.full((4,), 0.8, device=device),
        torch.full((4,), 0.9, device=device),
    )


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask.div_(keep)


def timm_drop_path_blocks(device):
    rates = [x.item() for x in torch.linspace(0, 0.3, 3, device="cpu")]

    class Block(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.norm = nn.BatchNorm2d(8)
            self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.path = DropPath(rate)
            self.gamma = nn.Parameter(torch.full((8, 1, 1), 1e-2))

        def forward(self, x):
            return x + self.path(self.gamma * self.conv(self.norm(x)))

    return nn.Sequential(*(Block(r) for r in rates)).to(device), (
        torch.randn(4, 8, 8, 8, device=device),
    )


def sac_update(device):
    actor = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    target = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    target.load_state_dict(critic.state_dict())
    alpha = torch.zeros((), device=device, requires_grad=True)
    optimizers = [
        torch.optim.Adam(p, lr=3e-4, capturable=True)
        for p in (actor.parameters(), critic.parameters(), [alpha])
    ]
    obs, nxt = torch.randn(16, 6, device=device), torch.randn(16, 6, device=device)
    act, reward = torch.rand(16, 2, device=device), torch.randn(16, 1, device=device)

    def policy(s):
        mean, log_std = actor(s).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
        raw = normal.rsample()
        log_prob = normal.log_prob(raw) - 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return raw.tanh(), log_prob.sum(-1, keepdim=True)

    def step():
        with torch.no_grad():
            a2, logp2 = policy(nxt)
            goal = reward + 0.99 * (target(torch.cat([nxt, a2], -1)) - alpha.exp() * logp2)
        q_loss = functional.mse_loss(critic(torch.cat([obs, act], -1)), goal)
        optimizers[1].zero_grad()
        q_loss.backward()
        optimizers[1].step()
        a, logp = policy(obs)
        pi_loss = (alpha.exp().detach() * logp - critic(torch.cat([obs, a], -1))).mean()
        optimizers[0].zero_grad()
        pi_loss.backward()
        optimizers[0].step()
        alpha_loss = -(alpha * (logp.detach() - 2)).mean()
        optimizers[2].zero_grad()
        alpha_loss.backward()
        optimizers[2].step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), critic.parameters(), strict=True):
                t.lerp_(p, 0.005)
        return q_loss.detach(), pi_loss.detach()

    return step


def dlrm_interaction(device):
    tables = nn.ModuleList(nn.EmbeddingBag(n, 8, mode="sum") for n in (50, 30, 20)).to(device)
    bottom, top = nn.Linear(4, 8).to(device), nn.Linear(8 + 6, 1).to(device)
    rows, cols = torch.tril_indices(4, 4, offset=-1, device=device)

    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.bottom, self.top = tables, bottom, top

        def forward(self, dense, sparse):
            d = self.bottom(dense).relu()
            features = [d] + [t(ids) for t, ids in zip(self.tables, sparse.unbind(0), strict=True)]
            stacked = torch.stack(features, 1)
            pairs = torch.bmm(stacked, stacked.mT)[:, rows, cols]
            return torch.sigmoid(self.top(torch.cat([d, pairs], 1)))

    return Dlrm(), (
        torch.randn(6, 4, device=device),
        torch.randint(20, (3, 6, 2), device=device),
    )


def moco_queue_on_device(device):
    encoder, momentum = nn.Linear(16, 8).to(device), nn.Linear(16, 8).to(device)
    momentum.load_state_dict(encoder.state_dict())
    momentum.requires_grad_(False)
    queue = functional.normalize(torch.randn(8, 32, device=device), dim=0)
    pointer = torch.zeros(1, dtype=torch.int64, device=device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    x = torch.randn(4, 16, device=device)
    labels = torch.zeros(4, dtype=torch.int64, device=device)

    def step():
        query = functional.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            torch._foreach_lerp_(list(momentum.parameters()), list(encoder.parameters()), 0.001)
            key = functional.normalize(momentum(x + 0.1 * torch.randn_like(x)), dim=1)
        positive = torch.einsum("nc,nc->n", query, key)[:, None]
        negative = query @ queue.clone().detach()
        loss = functional.cross_entropy(torch.cat([positive, negative], 1) / 0.07, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            at = (pointer + torch.arange(4, device=x.device)) % 32
            queue.index_copy_(1, at, key.t())
            pointer.copy_((pointer + 4) % 32)
        return loss

    return step


def ssm_scan_with_cache(device):
    """A Mamba decode step: convolution and state caches are rolled in place."""
    dim, state, width = 16, 8, 4
    conv = torch.zeros(2, dim, width, device=device)
    ssm = torch.zeros(2, dim, state, device=device)
    weight = torch.randn(dim, width, device=device)
    a_log = torch.log(torch.arange(1, state + 1, device=device).float()).repeat(dim, 1)
    project = nn.Linear(dim, 2 * state + 1).to(device)

    @torch.no_grad()
    def decode(x):
        conv.copy_(torch.roll(conv, shifts=-1, dims=-1))
        conv[:, :, -1] = x
        x = functional.silu((conv * weight).sum(-1))
        b, c, dt = torch.split(project(x), [state, state, 1], dim=-1)
        dt = functional.softplus(dt)[..., None]
        ssm.mul_(torch.exp(-a_log.exp() * dt)).add_(dt * b[:, None] * x[..., None])
        return torch.einsum("bds,bs->bd", ssm, c)

    return decode, (torch.randn(2, dim, device=device),)

"""Facilities of PyTorch as libraries use them."""

import functools
import time
import types

import torch
from torch import nn
from torch.nn import functional


def _seq(device):
    return (
        nn.Sequential(
            nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6, 3)
        )
        .to(device)
        .eval()
    )


# traced and frozen for deployment
def jit_trace_freeze(device):
    x = torch.randn(2, 4, 8, device=device)
    model = torch.jit.freeze(torch.jit.trace(_seq(device), x))
    return torch.no_grad()(model), (x,)


# traced only
def jit_trace(device):
    x = torch.randn(2, 4, 8, device=device)
    return torch.no_grad()(torch.jit.trace(_seq(device), x)), (x,)


# scripted module with control flow on shapes
class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, steps: int = 3) -> torch.Tensor:
        for i in range(steps):
            if x.shape[0] > 1:
                x = self.lin(x) + float(i)
            else:
                x = x * 2
        return torch.relu(x)


def jit_script_module(device):
    return torch.jit.script(Scripted().to(device).eval()), (torch.randn(2, 8, device=device),)


# scripted training with gradient
def jit_script_training(device):
    model = torch.jit.script(Scripted().to(device))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(2, 8, device=device)

    def step():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


# scripted code that reads a value
class ScriptedItem(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 3).any()):  # guilty: the truth of a tensor
            x = x / 2
        return x


def jit_truth(device):
    model = torch.jit.script(ScriptedItem())
    return (lambda x: model(x)), (torch.randn(4, device=device),)  # guilty: it reads a tensor


# eager-mode quantisation aware training modules
def qat(device):
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    fq = FakeQuantize(
        MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8
    ).to(device)
    lin = nn.Linear(8, 8).to(device)

    def forward(x):
        x = fq(x)  # guilty: whether it observes is a tensor
        return lin(x)

    return forward, (torch.randn(4, 8, device=device),)


# accelerate-like: forward replaced by a bound wrapper with hooks
def forward_patched(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    for m in model:
        old = m.forward

        @functools.wraps(old)
        def new(self, *args, _old=old, **kwargs):
            args = tuple(a.to(torch.float32) for a in args)
            return _old(*args, **kwargs)

        m.forward = types.MethodType(new, m)
    return torch.no_grad()(model), (torch.randn(2, 8, device=device),)


# LoRA by PEFT: wrapped linear with adapters, merged flag, active list
class LoraLinear(nn.Module):
    def __init__(self, base, r=4, alpha=8, dropout=0.1):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, r, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(r, base.out_features, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(dropout)})
        self.scaling = {"default": alpha / r}
        self.active_adapters, self.disable_adapters, self.merged = ["default"], False, False

    def forward(self, x, *args, **kwargs):
        dtype = x.dtype
        result = self.base_layer(x, *args, **kwargs)
        if not self.disable_adapters:
            for name in self.active_adapters:
                if name not in self.lora_A:
                    continue
                a, b = self.lora_A[name], self.lora_B[name]
                result = (
                    result
                    + b(a(self.lora_dropout[name](x.to(a.weight.dtype)))) * self.scaling[name]
                )
        return result.to(dtype)


def peft_lora_training(device):
    model = nn.Sequential(LoraLinear(nn.Linear(8, 16)), nn.GELU(), LoraLinear(nn.Linear(16, 4))).to(
        device
    )
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(
        params, lr=torch.tensor(1e-3, device=device), capturable=True, fused=True
    )
    x, y = torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device)

    def step():
        opt.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        opt.step()
        return loss.detach()

    return step


# LoRA merged and unmerged around a forward in place: drifts, but the same in eager
def lora_merge_context(device):
    base, a, b = (
        nn.Linear(8, 8).to(device),
        torch.randn(4, 8, device=device),
        torch.randn(8, 4, device=device),
    )

    def forward(x):
        backup = base.weight.data.clone()
        base.weight.data += b @ a
        y = base(x)
        base.weight.data.copy_(backup)
        return y

    return torch.no_grad()(forward), (torch.randn(2, 8, device=device),)


# torch.func ensemble gradient step with functional SGD
def functional_sgd(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    params = {k: v.detach().clone() for k, v in model.named_parameters()}

    def loss(p, x, y):
        return functional.mse_loss(torch.func.functional_call(model, p, (x,)), y)

    def step(x, y):
        grads, value = torch.func.grad_and_value(loss)(params, x, y)
        for k in params:
            params[k].sub_(grads[k], alpha=0.1)
        return value

    return step, (torch.randn(4, 4, device=device), torch.randn(4, 1, device=device))


# MAML with create_graph and functional_call
def maml(device):
    model = nn.Linear(4, 1).to(device)

    def outer(xs, ys, xq, yq):
        params = dict(model.named_parameters())
        inner = functional.mse_loss(torch.func.functional_call(model, params, (xs,)), ys)
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads, strict=True)}
        return functional.mse_loss(torch.func.functional_call(model, fast, (xq,)), yq)

    def r(n):
        return torch.randn(4, n, device=device)

    return outer, (r(4), r(1), r(4), r(1))


# functional params rebound in a dict each step
def functional_rebound(device):
    model = nn.Linear(4, 1).to(device)
    state = {"params": {k: v.detach().clone() for k, v in model.named_parameters()}}

    def loss(p, x):
        return torch.func.functional_call(model, p, (x,)).square().mean()

    def step(x):
        grads = torch.func.grad(loss)(state["params"], x)  # guilty: of the tensors of the capture
        state["params"] = {
            k: p - 0.1 * grads[k] for k, p in state["params"].items()
        }  # guilty: new tensors in each call
        return state["params"]["weight"].clone()

    return step, (torch.randn(4, 4, device=device),)


# pytree-style optax: returns new params, caller keeps them: innocent as nothing outlives the call
def pure_functional(device):
    def step(params, x):
        w, b = params
        gw, gb = torch.func.grad(lambda p: (x @ p[0] + p[1]).square().mean())((w, b))
        return w - 0.1 * gw, b - 0.1 * gb

    return step, (
        (torch.randn(4, 2, device=device), torch.zeros(2, device=device)),
        torch.randn(3, 4, device=device),
    )


# saved-tensor hooks that offload to pinned memory
def save_on_device(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)

    def forward(x):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.to(torch.bfloat16) if t.dtype == torch.float32 and t.dim() == 2 else t,
            lambda t: t.float() if t.dtype == torch.bfloat16 else t,
        ):
            return model(x)

    return forward, (torch.randn(2, 8, device=device),)


# saved tensors offloaded to pageable CPU memory
def save_on_cpu(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)

    def forward(x):
        with torch.autograd.graph.save_on_cpu():  # guilty: copied to the host
            return model(x)  # guilty: copied to the host

    return forward, (torch.randn(2, 8, device=device),)


# optimizer in backward (post accumulate hooks)
def optimizer_in_backward(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    opts = {p: torch.optim.SGD([p], 0.01, foreach=False) for p in model.parameters()}

    def hook(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    x = torch.randn(4, 8, device=device)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


# module.compile and a compiled function inside eager code
def regional_compile(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)).to(device)
    for b in blocks:
        b.compile()
    post = torch.compile(lambda x: x.softmax(-1) * 2)

    def forward(x):
        for b in blocks:
            x = b(x).relu()
        return post(x)

    return torch.no_grad()(forward), (torch.randn(2, 8, device=device),)


# default device context inside
def default_device(device):
    lin = nn.Linear(8, 8).to(device)

    def forward(x):
        with torch.device(device):
            mask = torch.ones(8, 8).tril().sum(0)
            pos = torch.arange(8)
        return lin(x) * mask + pos

    return torch.no_grad()(forward), (torch.randn(2, 8, device=device),)


# default device with a tensor from a list: a copy from the host
def default_device_list(device):
    def forward(x):
        with torch.device(device):
            w = torch.tensor([1.0, 2.0, 3.0])  # guilty: copied from the host
        return x * w

    return forward, (torch.randn(2, 3, device=device),)


# a custom op with autograd and fake, mutating one
@torch.library.custom_op("facilities::scale_add_", mutates_args=("out",))
def scale_add_(out: torch.Tensor, x: torch.Tensor, s: float) -> None:
    out.add_(x * s)


@torch.library.custom_op("facilities::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@swish.register_fake
def _(x):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _backward(ctx, g):
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(x)
    return g * (s + x * s * (1 - s))


swish.register_autograd(_backward, setup_context=_setup)


def custom_op_autograd(device):
    lin = nn.Linear(8, 8).to(device)
    acc = torch.zeros(4, 8, device=device)

    def forward(x):
        y = swish(lin(x))
        scale_add_(acc, y.detach(), 0.5)
        return y

    return forward, (torch.randn(4, 8, device=device),)


# old-style Library.impl per backend
lib = torch.library.Library("facilities_of_old", "FRAGMENT")


def _clip_cuda(x, c):
    return x * (c / (x.norm() + 1e-6)).clamp(max=1.0)


if not hasattr(torch.ops.facilities_of_old, "clip_norm"):  # this file may be loaded twice
    lib.define("clip_norm(Tensor x, float c) -> Tensor")
    lib.impl("clip_norm", _clip_cuda, "CUDA")
    lib.impl("clip_norm", _clip_cuda, "CPU")


def library_impl(device):
    return (lambda x: torch.ops.facilities_of_old.clip_norm(x, 1.0)), (
        torch.randn(4, 8, device=device),
    )


# transformer encoder, training mode; SDPA kernel selection context
def transformer_training(device):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True), 2).to(
        device
    )
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=device)

    def forward(x):
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
            return enc(x, mask=mask)  # guilty: the mask is compared with a causal one

    return forward, (torch.randn(2, 5, 16, device=device),)


# padding mask in eval: nested tensor fast path reads the mask
def transformer_padding_eval(device):
    enc = (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        .to(device)
        .eval()
    )

    def forward(x, pad):
        return enc(x, src_key_padding_mask=pad)  # guilty: the mask is read

    pad = torch.zeros(2, 5, dtype=torch.bool, device=device)
    pad[1, 3:] = True
    return torch.no_grad()(forward), (torch.randn(2, 5, 16, device=device), pad)


# distributions: sampling without validation, mixture, log_prob
def distributions(device):
    from torch.distributions import Categorical, MixtureSameFamily, Normal

    def nll(logits, mu, sigma, x):
        mix = MixtureSameFamily(
            Categorical(logits=logits, validate_args=False),
            Normal(mu, sigma.exp(), validate_args=False),
            validate_args=False,
        )
        return -mix.log_prob(x).mean()

    return nll, (
        torch.randn(4, 3, device=device),
        torch.randn(4, 3, device=device),
        torch.randn(4, 3, device=device),
        torch.randn(4, device=device),
    )


# distributions: Dirichlet/Gamma sampling on the device
def gamma_sample(device):
    def sample(alpha):
        return (
            torch._standard_gamma(alpha),
            torch.poisson(alpha),
            torch.bernoulli(alpha.sigmoid()),
            torch.normal(0.0, 1.0, (3,), device=alpha.device),
        )

    return torch.no_grad()(sample), (torch.rand(4, device=device) + 1,)


# torch.normal with a tensor std checks std >= 0
def normal_tensor_std(device):
    def sample(mu, std):
        return torch.normal(mu, std)  # guilty: the deviation is read

    return sample, (torch.zeros(4, device=device), torch.ones(4, device=device))


# swa_utils
def averaged_model(device):
    from torch.optim.swa_utils import AveragedModel

    model = nn.Linear(8, 2).to(device)
    avg = AveragedModel(model)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 8, device=device)

    def step():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        avg.update_parameters(model)  # guilty: its counter is read
        return loss.detach()

    return step


# EMA multi_avg_fn of swa_utils after the first update still reads n_averaged == 0
def ema_multi_avg(device):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = nn.Linear(8, 2).to(device)
    avg = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    x = torch.randn(4, 8, device=device)

    def step():
        y = model(x)
        avg.update_parameters(model)  # guilty: its counter is read
        return y

    return torch.no_grad()(step)


# gradient scaler unscale then clip: found_inf stays on the device, the step of SGD fused
def unscale_clip_fused(device):
    model = nn.Linear(8, 4).to(device)
    opt = torch.optim.SGD(model.parameters(), 0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    x = torch.randn(4, 8, device=device)

    def step():
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    return step


# CPU tensor index
def cpu_index(device):
    perm = torch.randperm(8)

    def forward(x):
        return x[:, perm]  # guilty: an index on the host

    return forward, (torch.randn(2, 8, device=device),)


# list index
def list_fancy_index(device):
    def forward(x):
        return x[:, [0, 2, 4]]  # guilty: a list is copied

    return forward, (torch.randn(2, 8, device=device),)


# slices, strides, None, ellipsis, int and bool-constant indexing
def basic_indexing(device):
    def forward(x):
        y = x[..., None, 1:-1:2]
        z = x[0, :, -1]
        x = x.clone()
        x[:, :2] = 0
        x[1] = x[0] * 2
        x[:, -1] += 1
        return (
            y,
            z,
            x,
            x[None],
            x.T[::2],
            x.flip(-1),
            x.roll(1, 0),
            x.narrow(0, 0, 1),
            x.select(1, 2),
            torch.take_along_dim(x[0], x[0].argsort(-1), -1),
        )

    return forward, (torch.randn(2, 4, 6, device=device),)


# anomaly off, grad mode switches, no_grad decorator, inference mode, enable_grad
def grad_modes(device):
    lin = nn.Linear(4, 4).to(device)

    @torch.no_grad()
    def target(x):
        return lin(x)

    def forward(x):
        with torch.inference_mode():
            t = lin(x) * 2
        with torch.set_grad_enabled(True):
            y = lin(x)
        return functional.mse_loss(y, target(x)), t.clone()

    return forward, (torch.randn(2, 4, device=device),)


# detect_anomaly
def anomaly(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)
    x = torch.randn(4, 8, device=device)

    def step():
        with torch.autograd.set_detect_anomaly(True):
            loss = model(x).mean()
            loss.backward()  # guilty: anomaly mode reads every gradient
        return loss.detach()

    return step


# Lazy modules initialised before
def lazy_linear(device):
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)).to(device)
    x = torch.randn(4, 6, device=device)
    model(x)
    return model, (x,)


# tensor.backward in an autograd.Function that calls grad inside (implicit differentiation, DEQ)
class FixedPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        z = torch.zeros_like(x)
        for _ in range(6):
            z = torch.tanh(z @ w * 0.1 + x)
        ctx.save_for_backward(x, w, z)
        return z

    @staticmethod
    def backward(ctx, g):
        x, w, z = ctx.saved_tensors
        with torch.enable_grad():
            z, x, w = (t.detach().requires_grad_() for t in (z, x, w))
            f = torch.tanh(z @ w * 0.1 + x)
        v = g
        for _ in range(6):
            v = torch.autograd.grad(f, z, v, retain_graph=True)[0] + g
        return torch.autograd.grad(f, (x, w), v)


def deq(device):
    w = nn.Parameter(torch.randn(8, 8, device=device))
    return (lambda x: FixedPoint.apply(x, w)), (
        torch.randn(2, 8, device=device, requires_grad=True),
    )


# Sinkhorn with a fixed count; with a tolerance
def sinkhorn(device):
    def sinkhorn(c):
        f, g = c.new_zeros(c.shape[0]), c.new_zeros(c.shape[1])
        for _ in range(5):
            f = -torch.logsumexp(g - c, 1)
            g = -torch.logsumexp(f[:, None] - c, 0)
        return (f[:, None] + g - c).exp()

    return sinkhorn, (torch.rand(4, 5, device=device),)


def sinkhorn_tolerance(device):
    def sinkhorn(c):
        f, g = c.new_zeros(c.shape[0]), c.new_zeros(c.shape[1])
        error = float("inf")
        while error > 1e-1:
            old = f
            f = -torch.logsumexp(g - c, 1)
            g = -torch.logsumexp(f[:, None] - c, 0)
            error = (f - old).abs().max()
            error = error.item()  # guilty: the value is read
        return (f[:, None] + g - c).exp()

    return sinkhorn, (torch.rand(4, 4, device=device),)


# weights shared by a global registry that is refreshed by time

_REGISTRY = {"at": 0.0, "scale": 1.0}


def registry_refresh(device):
    def forward(x):
        if time.monotonic() - _REGISTRY["at"] > 30:  # guilty: changes with the time
            _REGISTRY.update(
                at=time.monotonic(), scale=_REGISTRY["scale"] * 1.1
            )  # guilty: changes with the time
        return x * _REGISTRY["scale"]  # guilty: a number that changes

    return forward, (torch.randn(4, device=device),)

"""Hooks, checkpoints and modes of autograd, and transforms of functions."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def anomalies_detected_in_training(device):
    model = nn.Linear(6, 3).to(device)
    x, y = torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device)

    def step():
        model.zero_grad()
        with torch.autograd.detect_anomaly(check_nan=True):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()  # guilty: looks for NaN after each function
        return loss

    return step


def activations_saved_on_the_cpu(device):
    first, second = nn.Linear(6, 16).to(device), nn.Linear(16, 1).to(device)
    x = torch.randn(8, 6, device=device)

    def step():
        for p in (*first.parameters(), *second.parameters()):
            p.grad = None
        with torch.autograd.graph.save_on_cpu():
            hidden = first(x).tanh()  # guilty: copies what it saves, and waits
        loss = second(hidden).square().mean()
        loss.backward()
        return loss

    return step


def activations_saved_in_half(device):
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    x = torch.randn(8, 6, device=device)

    def pack(tensor):
        return tensor.dtype, tensor.to(torch.bfloat16)

    def unpack(packed):
        dtype, tensor = packed
        return tensor.to(dtype)

    def step():
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def features_gathered_by_hooks(device):
    """A perceptual loss: hooks leave the features in a dict that the same call reads."""
    extractor = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
    extractor.to(device).requires_grad_(False)
    features = {}

    def keep(name):
        return lambda module, args, output: features.__setitem__(name, output)

    for name in ("1", "3"):
        extractor.get_submodule(name).register_forward_hook(keep(name))

    def loss(image, target):
        extractor(image)
        mine = dict(features)
        with torch.no_grad():
            extractor(target)
        return sum(functional.l1_loss(mine[name], features[name]) for name in mine)

    image = torch.rand(1, 3, 12, 12, device=device, requires_grad=True)
    return loss, (image, torch.rand(1, 3, 12, 12, device=device))


def blocks_recomputed_in_backward(device):
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in "ab"
    )
    blocks.to(device)

    def forward(x):
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return x

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)


def ensemble_by_vmap(device):
    members = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(3)]
    members = [member.to(device) for member in members]
    parameters, buffers = torch.func.stack_module_state(members)
    skeleton = members[0]

    def one(parameters, buffers, x):
        return torch.func.functional_call(skeleton, (parameters, buffers), (x,))

    def predict(x):
        each = torch.vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
        return each.mean(0), each.var(0)

    return predict, (torch.randn(4, 6, device=device),)


def step_with_ranges_for_the_profiler(device):
    model = nn.Linear(6, 3).to(device)
    x, y = torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device)
    rate = torch.full((), 0.1, device=device)

    def step():
        try:
            torch.cuda.nvtx.range_push("forward")
            with torch.profiler.record_function("loss"):
                loss = functional.cross_entropy(model(x), y)
        finally:
            torch.cuda.nvtx.range_pop()
        grads = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            torch._foreach_addcmul_([*model.parameters()], grads, [rate] * len(grads), -1.0)
        return loss

    return step


def scores_by_a_static_queue(device):
    """MoCo: the queue is written at a pointer on the device."""
    query, key = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device).requires_grad_(False)
    queue = functional.normalize(torch.randn(16, 4, device=device), dim=1)
    pointer = torch.zeros(1, dtype=torch.long, device=device)

    def loss(x):
        q, k = functional.normalize(query(x), dim=1), functional.normalize(key(x), dim=1)
        negative = q @ queue.clone().t()
        logits = torch.cat([(q * k).sum(1, keepdim=True), negative], 1) / 0.07
        with torch.no_grad():
            queue.index_copy_(0, (pointer + torch.arange(4, device=x.device)) % 16, k)
            pointer.add_(4)
        return functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=x.device))

    return loss, (torch.randn(4, 6, device=device),)

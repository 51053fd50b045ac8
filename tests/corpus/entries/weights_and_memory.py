"""Weights that come and go, optimizers, caches, streams and snapshots."""

import copy
import io

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence


def resilient_propagation(device):
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # guilty: refuses a capture unless capturable
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


def orthogonalized_momentum(device):
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    model.to(device)
    # No option `capturable`, and no step count: nothing of it changes on the host.
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


def sentences_packed_unsorted(device):
    embed = nn.Embedding(50, 6).to(device)

    @torch.no_grad()
    def f(a, b, c):
        # Sorted on the host by their lengths; the order is copied to the device.
        packed = pack_sequence([embed(s) for s in (a, b, c)], enforce_sorted=False)  # guilty: copy
        normed = functional.layer_norm(packed.data, (6,))
        return pad_packed_sequence(packed._replace(data=normed), batch_first=True)[0]

    return f, tuple(torch.randint(0, 50, (n,), device=device) for n in (3, 7, 5))


def auxiliary_head_not_forked(device):
    body, head = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device)
    side = torch.cuda.Stream()

    @torch.no_grad()
    def f(x):
        with torch.cuda.stream(side):
            # Nothing makes this stream wait, so it is not part of the capture.
            extra = head(x)  # guilty: on a stream that was not forked
        main = body(x)
        torch.cuda.current_stream().wait_stream(side)  # guilty: waits for work outside the capture
        return main + extra

    return f, (torch.randn(8, 6, device=device),)


def auxiliary_head_between_events(device):
    body, head = nn.Linear(6, 4).to(device), nn.Linear(6, 4).to(device)
    side, start, end = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()

    @torch.no_grad()
    def f(x):
        start.record()
        side.wait_event(start)
        with torch.cuda.stream(side):
            extra = head(x)
            end.record()
        main = body(x)
        end.wait()
        return main + extra

    return f, (torch.randn(8, 6, device=device),)


def target_with_assigned_weights(device):
    online, target = nn.Linear(6, 2).to(device), nn.Linear(6, 2).to(device)
    target.requires_grad_(False)

    def step(x):
        loss = functional.mse_loss(online(x), target(x))  # guilty: the weights of the capture
        grads = torch.autograd.grad(loss, [*online.parameters()])
        with torch.no_grad():
            for p, g in zip(online.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.1)
            latest = online.state_dict()
            mixed = {
                k: v.lerp(latest[k], 0.2) for k, v in target.state_dict().items()
            }  # guilty: old
            # The new tensors become the weights, so the next call reads other memory.
            target.load_state_dict(mixed, assign=True)  # guilty: weights at new addresses
        return loss

    return step, (torch.randn(8, 6, device=device),)


class DroppedLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            # On the CPU, as in many libraries: no wait for the GPU, but drawn at the capture.
            if self.training and torch.rand([]) < 0.5:  # guilty: frozen choice
                continue  # guilty: the layer is missing in all replays
            x = x + torch.tanh(layer(x))  # guilty: the layer is in all replays
        return x


def layers_dropped_by_the_host(device):
    return DroppedLayers().to(device).train(), (torch.randn(4, 6, device=device),)


class StepCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 16)
        self.register_buffer("keys", torch.zeros(2, 12, 8))
        self.register_buffer("values", torch.zeros(2, 12, 8))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def forward(self, x):
        key, value = self.project(x).chunk(2, -1)
        # A tensor without dimensions is an index like an int, so it is read.
        self.keys[:, self.position] = key  # guilty: reads the position
        self.values[:, self.position] = value
        seen = torch.arange(12, device=x.device) <= self.position
        self.position.add_(1).remainder_(12)
        scores = torch.einsum("bd,btd->bt", x, self.keys).masked_fill(~seen, float("-inf"))
        return torch.einsum("bt,btd->bd", scores.softmax(-1), self.values)


def cache_written_at_a_scalar(device):
    return StepCache().to(device), (torch.randn(2, 8, device=device),)


def weights_kept_in_a_file_in_memory(device):
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshot = io.BytesIO()

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        snapshot.seek(0)
        torch.save(model.state_dict(), snapshot)  # guilty: copies the weights to the host
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


def weight_gathered_and_released(device):
    """As in sharded training: the full weight has memory only while it is used."""
    shards = torch.randn(4, 12, device=device)
    full = torch.empty(48, device=device)
    weight, size = full.view(8, 6), full.untyped_storage().nbytes()
    full.untyped_storage().resize_(0)

    @torch.no_grad()
    def f(x):
        full.untyped_storage().resize_(size)
        torch.cat(shards.unbind(), out=full)
        y = functional.linear(x, weight)
        full.untyped_storage().resize_(0)
        return y.tanh()

    return f, (torch.randn(5, 6, device=device),)


def inner_steps_on_a_copy(device):
    """First-order meta learning: a copy of the model is trained, and thrown away."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    model.to(device)

    def step(x, y, other_x, other_y):
        fast = copy.deepcopy(model)
        for _ in range(2):
            loss = functional.mse_loss(fast(x), y)
            slopes = torch.autograd.grad(loss, [*fast.parameters()])
            with torch.no_grad():
                torch._foreach_sub_([*fast.parameters()], slopes, alpha=0.1)
        outer = functional.mse_loss(fast(other_x), other_y)
        slopes = torch.autograd.grad(outer, [*fast.parameters()])
        with torch.no_grad():
            torch._foreach_sub_([*model.parameters()], slopes, alpha=0.05)
        return outer

    inputs = [torch.randn(8, width, device=device) for width in (6, 1, 6, 1)]
    return step, tuple(inputs)


def average_lent_to_the_model(device):
    model = nn.Linear(6, 1).to(device)
    average = [p.detach().clone() for p in model.parameters()]

    def swap():
        for p, a in zip(model.parameters(), average, strict=True):
            p.data, a.data = a.data, p.data

    def step(x, y):
        loss = functional.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            torch._foreach_sub_([*model.parameters()], grads, alpha=0.1)
            torch._foreach_lerp_(average, [*model.parameters()], 0.1)
            # Swapped twice: after the step each has its own memory again.
            swap()
            smooth = functional.mse_loss(model(x), y)
            swap()
        return loss, smooth

    return step, (torch.randn(8, 6, device=device), torch.randn(8, 1, device=device))


def layers_of_unknown_width(device):
    model = nn.Sequential(
        nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
    ).to(device)

    @torch.no_grad()
    def f(x):
        # The first call, before the capture, makes the weights; later ones find them.
        return model(x)

    return f, (torch.randn(3, 5, 9, device=device),)


def trained_with_a_pruning_mask(device):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    for layer in (model[0], model[2]):
        # Computes the weight here, on the default stream; each later one shares its node.
        prune.random_unstructured(layer, "weight", amount=0.5)  # guilty: makes the node
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(x, y):
        optimizer.zero_grad()
        # A hook makes the weight, an attribute, from mask and parameter before each call.
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # guilty: runs a node of the default stream
        optimizer.step()
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))

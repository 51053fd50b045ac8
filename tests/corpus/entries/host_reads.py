"""Values of the device that the host wants to know."""

import logging

import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger(__name__)


def normalise_by_peak(device):
    def normalise(audio):
        peak = audio.abs().max().item()  # guilty: the peak is read on the host
        return audio / peak

    return normalise, (torch.randn(2, 400, device=device),)


def normalise_by_peak_on_device(device):
    def normalise(audio):
        return audio / audio.abs().amax().clamp_min(1e-6)

    return normalise, (torch.randn(2, 400, device=device),)


def skip_bad_batch(device):
    model = nn.Linear(16, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)
    y = torch.randint(4, (8,), device=device)

    def step():
        loss = functional.cross_entropy(model(x), y)
        if torch.isfinite(loss):  # guilty: Python branches on a tensor
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    return step


def zero_bad_gradients(device):
    model = nn.Linear(16, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)
    y = torch.randint(4, (8,), device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        good = torch.isfinite(loss)
        for parameter in model.parameters():
            parameter.grad.mul_(good)
        optimizer.step()
        return loss

    return step


def crop_to_longest(device):
    embedding = nn.Embedding(100, 8, device=device)

    def encode(ids, lengths):
        longest = int(lengths.max())  # guilty: a length is read on the host
        return embedding(ids[:, :longest]).mean(1)

    ids = torch.randint(100, (4, 12), device=device)
    return encode, (ids, torch.tensor([3, 12, 7, 5], device=device))


def mask_by_length(device):
    embedding = nn.Embedding(100, 8, device=device)
    positions = torch.arange(12, device=device)

    def encode(ids, lengths):
        mask = positions < lengths[:, None]
        return (embedding(ids) * mask[..., None]).sum(1) / lengths[:, None]

    ids = torch.randint(100, (4, 12), device=device)
    return encode, (ids, torch.tensor([3, 12, 7, 5], device=device))


def assert_labels_in_range(device):
    head = nn.Linear(8, 10, device=device)

    def loss(x, labels):
        assert labels.max() < 10, "label out of range"  # guilty: the assertion waits for the device
        return functional.cross_entropy(head(x), labels)

    return loss, (torch.randn(4, 8, device=device), torch.randint(10, (4,), device=device))


def assert_shapes(device):
    head = nn.Linear(8, 10, device=device)

    def loss(x, labels):
        assert x.shape[0] == labels.numel(), "a label for each row"
        assert not labels.is_floating_point()
        return functional.cross_entropy(head(x), labels)

    return loss, (torch.randn(4, 8, device=device), torch.randint(10, (4,), device=device))


def logs_the_loss(device):
    model = nn.Linear(8, 1, device=device)

    def loss(x):
        value = model(x).square().mean()
        log.warning("loss %s", value)  # guilty: formatting a tensor copies it to the host
        return value

    return loss, (torch.randn(4, 8, device=device),)


def logs_below_its_level(device):
    model = nn.Linear(8, 1, device=device)

    def loss(x):
        value = model(x).square().mean()
        log.debug("loss %s", value)
        return value

    return loss, (torch.randn(4, 8, device=device),)


def early_exit(device):
    blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4)).to(device)

    def infer(x):
        for block in blocks:
            x = torch.tanh(block(x))
            if x.std() < 0.01:  # guilty: leaves the loop by a value of the device
                break
        return x

    return infer, (torch.randn(4, 16, device=device),)


def top_expert_as_list(device):
    gate = nn.Linear(16, 4, device=device)
    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4)).to(device)

    def route(x):
        best = gate(x).mean(0).topk(2).indices
        return sum(experts[i](x) for i in best.tolist())  # guilty: chooses modules by a tensor

    return route, (torch.randn(8, 16, device=device),)


def newton_until_converged(device):
    def root(a):
        x = a.clone()
        while (x * x - a).abs().max() > 1e-5:  # guilty: iterates until a value is small
            x = 0.5 * (x + a / x)
        return x

    return root, (torch.rand(32, device=device) + 0.5,)


def newton_fixed_steps(device):
    def root(a):
        x = a.clone()
        for _ in range(6):
            x = 0.5 * (x + a / x)
        return x

    return root, (torch.rand(32, device=device) + 0.5,)


def to_numpy_and_back(device):
    def smooth(x):
        kernel = torch.hann_window(5, device=device)
        host = x.detach().cpu().numpy()  # guilty: a copy to the host
        return functional.conv1d(x, kernel.view(1, 1, -1)) * host.shape[-1]

    return smooth, (torch.randn(2, 1, 64, device=device),)


def clips_by_known_norm(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def clips_and_raises_on_nan(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(
            model.parameters(), 1.0, error_if_nonfinite=True
        )  # guilty: reads it
        optimizer.step()

    return step


def sorts_by_a_key(device):
    def order(scores, boxes):
        first = max(range(4), key=lambda i: scores[i])  # guilty: compares tensors on the host
        return boxes[first]

    return order, (torch.rand(4, device=device), torch.rand(4, 4, device=device))


def histogram_equalise(device):
    def equalise(image):
        counts = torch.histc(image, bins=16, min=0, max=1)
        cdf = counts.cumsum(0) / image.numel()
        return cdf[(image * 15).long()]

    return equalise, (torch.rand(32, 32, device=device),)


def histogram_with_unknown_range(device):
    def equalise(image):
        counts = torch.histc(image, bins=16)  # guilty: finds the range on the host
        cdf = counts.cumsum(0) / image.numel()
        return cdf[(image * 15).long()]

    return equalise, (torch.rand(32, 32, device=device),)


def layer_by_a_tensor(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)
    order = torch.tensor([2, 0, 1], device=device)

    def forward(x):
        for index in order:
            x = layers[index](x)  # guilty: the index is read on the host
        return x

    return forward, (torch.randn(4, 8, device=device),)


def rate_falls_on_a_plateau(device):
    model = nn.Linear(8, 1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        plateau.step(loss.detach())  # guilty: the loss is read and compared on the host
        return loss

    return step

"""Layers of torch.nn whose options decide whether they can be captured."""

import torch
from torch import nn
from torch.nn.utils import parametrizations


def batch_norm_with_a_cumulative_mean(device):
    norm = nn.BatchNorm1d(6, momentum=None).to(device)
    head = nn.Linear(6, 2).to(device)

    def forward(x):
        return head(norm(x))  # guilty: float(num_batches_tracked)

    return forward, (torch.randn(8, 6, device=device),)


def batch_norm_training_step(device):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    x, y = torch.randn(8, 6, device=device), torch.randint(2, (8,), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def encoder_in_eval_with_padding(device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).to(device).eval()
    x = torch.randn(2, 5, 16, device=device)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)

    def encode(x, padding):
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=padding)  # guilty: asks for the lengths

    return encode, (x, padding)


def encoder_in_eval_without_nested_tensors(device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).eval()
    x = torch.randn(2, 5, 16, device=device)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)

    def encode(x, padding):
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=padding)

    return encode, (x, padding)


def recurrent_weight_kept_orthogonal(device):
    cell = parametrizations.orthogonal(nn.Linear(6, 6, bias=False)).to(device)
    inward = nn.Linear(4, 6).to(device)

    def unroll(x):
        h = torch.zeros(x.shape[0], 6, device=x.device)
        for t in range(x.shape[1]):
            h = torch.tanh(
                inward(x[:, t]) + cell(h)
            )  # guilty: matrix_exp sorts by norm on the host
        return h

    return unroll, (torch.randn(3, 4, 4, device=device),)


def discriminator_with_spectral_norm(device):
    first = parametrizations.spectral_norm(nn.Linear(6, 12))
    model = nn.Sequential(first, nn.LeakyReLU(0.2), nn.Linear(12, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    real, fake = torch.randn(8, 6, device=device), torch.randn(8, 6, device=device)

    def step():
        optimizer.zero_grad()
        loss = torch.relu(1 - model(real)).mean() + torch.relu(1 + model(fake)).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class RampedDropout(nn.Module):
    """Dropout that grows during training."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 4))

    def forward(self, x):
        dropout = self.layers[2]
        dropout.p = min(0.5, dropout.p + 0.01)  # guilty: a number of the host
        return self.layers(x)  # guilty: with the probability of the capture


def dropout_grows_with_each_call(device):
    return RampedDropout().to(device), (torch.randn(64, 8, device=device),)


class Skipping(nn.Module):
    """LayerDrop: each layer is skipped now and then."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer, draw in zip(
            self.layers, torch.empty(4).uniform_().tolist(), strict=True
        ):  # guilty: CPU draw
            if draw < 0.5:  # guilty: decided at capture
                continue
            x = x + torch.tanh(layer(x))  # guilty: in the graph or not
        return x


def layers_skipped_by_the_cpu_generator(device):
    return Skipping().to(device), (torch.randn(3, 8, device=device),)


class Slopes:
    """ALiBi: slopes are computed for the first call."""

    def __init__(self):
        self.known = {}

    def __call__(self, heads, length, device):
        if (heads, length) not in self.known:
            slopes = [2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)]
            distance = torch.arange(length).view(1, -1) - torch.arange(length).view(-1, 1)
            bias = torch.tensor(slopes).view(-1, 1, 1) * distance.abs().neg()
            self.known[heads, length] = bias.to(device)
        return self.known[heads, length]


def lazy_layer_with_memoized_slopes(device):
    slopes = Slopes()
    project = nn.LazyLinear(16).to(device)

    def attend(x):
        q = project(x).unflatten(-1, (4, 4)).transpose(1, 2)
        scores = q @ q.transpose(-1, -2) * 0.5 + slopes(4, x.shape[1], x.device)
        return (scores.softmax(-1) @ q).transpose(1, 2).flatten(-2)

    return attend, (torch.randn(2, 6, 8, device=device),)

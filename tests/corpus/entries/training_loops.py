"""Recurrent nets, mixed precision, averaged weights, metrics, normalisation, accumulation."""

import math
import threading

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def plain_lstm(device):
    return nn.LSTM(8, 8, batch_first=True).to(device), (torch.randn(2, 5, 8, device=device),)


def gru_with_initial_state(device):
    gru = nn.GRU(8, 8, num_layers=2).to(device)
    return gru, (torch.randn(5, 2, 8, device=device), torch.zeros(2, 2, 8, device=device))


def packed_sequences(device):
    lstm = nn.LSTM(8, 8, batch_first=True).to(device)

    def forward(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x,
            lengths.cpu(),  # guilty: lengths are copied to the host
            batch_first=True,
            enforce_sorted=False,
        )
        return lstm(packed)[0].data

    return forward, (torch.randn(3, 5, 8, device=device), torch.tensor([5, 2, 3], device=device))


def masked_recurrence(device):
    cell = nn.GRUCell(8, 8).to(device)

    def forward(x, lengths):
        hidden = torch.zeros(x.shape[0], 8, device=x.device)
        for t in range(x.shape[1]):
            new = cell(x[:, t], hidden)
            hidden = torch.where((t < lengths)[:, None], new, hidden)
        return hidden

    return forward, (torch.randn(3, 5, 8, device=device), torch.tensor([5, 2, 3], device=device))


def truncated_backprop(device):
    cell, head = nn.GRUCell(8, 8).to(device), nn.Linear(8, 1, device=device)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
    x = torch.randn(6, 4, 8, device=device)
    hidden = torch.zeros(4, 8, device=device)

    def step():
        state = hidden.clone()
        loss = 0
        for each in x:
            state = cell(each, state)
            loss = loss + head(state).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        hidden.copy_(state.detach())
        return loss.detach()

    return step


def truncated_backprop_rebinds(device):
    cell, head = nn.GRUCell(8, 8).to(device), nn.Linear(8, 1, device=device)
    x = torch.randn(6, 4, 8, device=device)
    hidden = torch.zeros(4, 8, device=device)

    def step():
        nonlocal hidden
        loss = 0
        x.normal_()
        for each in x:
            hidden = cell(each, hidden)  # guilty: the next replay begins at the same tensor
            loss = loss + head(hidden).square().mean()
        hidden = hidden.detach()  # guilty: the name is bound to a new tensor
        return loss.detach()

    return step


def autocast_bfloat16(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device)

    def loss(x, y):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return functional.cross_entropy(model(x).float(), y)

    return loss, (torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device))


def autocast_only_forward(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).to(device).eval()

    @torch.no_grad()
    def infer(x):
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            return model(x)

    return infer, (torch.randn(4, 8, device=device),)


def loss_scale_by_hand(device):
    model = nn.Linear(8, 1, device=device)
    scale = {"value": 2.0**16, "good": 0}

    def loss(x):
        scale["good"] += 1  # guilty: counted on the host
        if scale["good"] % 100 == 0:  # guilty: it doubles on the host
            scale["value"] *= 2  # guilty: it doubles on the host
        return model(x).square().mean() * scale["value"]  # guilty: the scale of the capture

    return loss, (torch.randn(4, 8, device=device),)


def loss_scale_on_device(device):
    model = nn.Linear(8, 1, device=device)
    scale = torch.full((), 2.0**10, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        loss = model(x).square().mean() * scale
        grads = torch.autograd.grad(loss, list(model.parameters()))
        good = torch.stack([each.isfinite().all() for each in grads]).all()
        scale.mul_(torch.where(good, 1.01, 0.5))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(0.01 * torch.where(good, grad / scale, 0.0))
        return loss.detach()

    return step


def skips_by_overflow_flag(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        if not all(each.isfinite().all() for each in grads):  # guilty: reads a flag of the device
            return loss.detach()
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(grad, alpha=0.01)
        return loss.detach()

    return step


def exponential_average_by_foreach(device):
    model, average = nn.Linear(8, 8, device=device), nn.Linear(8, 8, device=device)
    average.requires_grad_(False)

    def forward(x):
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
        return average(x)

    return forward, (torch.randn(4, 8, device=device),)


def averaged_model_counts(device):
    model = nn.Linear(8, 8, device=device)
    averaged = AveragedModel(model)

    def forward(x):
        with torch.no_grad():
            y = model(x)
            averaged.update_parameters(model)  # guilty: asks a counter on the device
        return y

    return forward, (torch.randn(4, 8, device=device),)


def ema_model_with_multi_avg(device):
    model = nn.Linear(8, 8, device=device)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), device=device)

    def forward(x):
        with torch.no_grad():
            averaged.update_parameters(model)  # guilty: asks a counter on the device
            return averaged(x)

    return forward, (torch.randn(4, 8, device=device),)


def ema_starts_late(device):
    model, average = nn.Linear(8, 8, device=device), nn.Linear(8, 8, device=device)
    updates = [0]

    @torch.no_grad()
    def forward(x):
        updates[0] += 1  # guilty: counted on the host
        model.weight.add_(x.mean())
        decay = min(0.999, (1 + updates[0]) / (10 + updates[0]))
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.mul_(decay).add_(new, alpha=1 - decay)  # guilty: the decay of the capture
        return average(x)

    return forward, (torch.randn(4, 8, device=device),)


def batch_norm_training(device):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(device).train()
    return model, (torch.randn(4, 3, 8, 8, device=device),)


def batch_norm_cumulative_average(device):
    norm = nn.BatchNorm1d(8, momentum=None).to(device).train()  # guilty: averages by a host number

    def forward(x):
        return norm(x)  # guilty: the number of batches is read

    return forward, (torch.randn(4, 8, device=device),)


def batch_norm_momentum_decays(device):
    norm = nn.BatchNorm1d(8).to(device).train()

    def forward(x):
        norm.momentum *= 0.99  # guilty: a Python number that changes
        return norm(x)  # guilty: the momentum of the capture

    return forward, (torch.randn(4, 8, device=device),)


def group_and_instance_norm(device):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.Mish()
    )
    return model.to(device), (torch.randn(2, 3, 8, 8, device=device),)


def accumulates_with_a_flag(device):
    model = nn.Linear(8, 1, device=device)
    grads = [torch.zeros_like(each) for each in model.parameters()]

    def micro(x, first):
        loss = model(x).square().mean()
        new = torch.autograd.grad(loss, list(model.parameters()))
        for total, each in zip(grads, new, strict=True):
            total.mul_(~first).add_(each)
        return loss.detach(), grads[0] * 1.0

    return micro, (torch.randn(4, 8, device=device), torch.tensor(False, device=device))


def gradient_noise_scale(device):
    model = nn.Linear(8, 1, device=device)
    small = torch.zeros((), device=device)
    x = torch.randn(2, 4, 8, device=device)

    def step():
        norms = []
        for half in x:
            grads = torch.autograd.grad(model(half).square().mean(), list(model.parameters()))
            norms.append(sum(each.square().sum() for each in grads))
        small.lerp_((norms[0] + norms[1]) / 2, 0.1)
        return small * 1.0

    return step


def clips_by_python_norm(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        norm = math.sqrt(sum(float(each.square().sum()) for each in grads))  # guilty: reads norms
        return [each * min(1.0, 1.0 / (norm + 1e-6)) for each in grads]

    return step


def adaptive_clipping_keeps_quantiles(device):
    model = nn.Linear(8, 1, device=device)
    history = torch.zeros(16, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        norm = torch.stack([each.norm() for each in grads]).norm()
        history.copy_(torch.cat([history[1:], norm[None]]))
        bound = history.sort().values[12].clamp_min(1e-3)
        return [each * (bound / norm).clamp(max=1) for each in grads]

    return step


class BackgroundCounter:
    """Counts in a thread, as a prefetcher or a heartbeat would."""

    def __init__(self):
        self.value = 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        tick = threading.Event()
        while True:
            tick.wait(0.002)
            self.value += 1


def weighted_by_a_background_counter(device):
    model = nn.Linear(8, 8, device=device)
    counter = BackgroundCounter()

    def forward(x):
        return model(x) / (1 + counter.value)  # guilty: another thread changes the number

    return forward, (torch.randn(4, 8, device=device),)


def loss_weights_follow_losses(device):
    model = nn.Linear(8, 2, device=device)
    weights = [1.0, 1.0]

    def loss(x):
        a, b = model(x).square().mean(0)
        total = weights[0] * a + weights[1] * b
        weights[:] = [1 / (1 + a.item()), 1 / (1 + b.item())]  # guilty: losses are read
        return total

    return loss, (torch.randn(4, 8, device=device),)


def uncertainty_weighting(device):
    model = nn.Linear(8, 2, device=device)
    log_variance = nn.Parameter(torch.zeros(2, device=device))

    def loss(x):
        losses = model(x).square().mean(0)
        return (losses * (-log_variance).exp() + log_variance).sum()

    return loss, (torch.randn(4, 8, device=device),)


def label_smoothing_and_weights(device):
    weight = torch.rand(4, device=device) + 0.5

    def loss(logits, y):
        return functional.cross_entropy(  # guilty: smoothing with weights selects the labels
            logits, y, weight, label_smoothing=0.1, ignore_index=-1
        )

    logits = torch.randn(8, 4, device=device, requires_grad=True)
    return loss, (logits, torch.randint(4, (8,), device=device))


def focal_loss(device):
    def loss(logits, y):
        p = logits.sigmoid()
        error = functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return (error * (1 - torch.where(y > 0.5, p, 1 - p)) ** 2).mean()

    logits = torch.randn(8, 4, device=device, requires_grad=True)
    return loss, (logits, torch.rand(8, 4, device=device).round())


def hard_negatives_by_count(device):
    def loss(scores, positive):
        worst, _ = scores.masked_fill(positive, -1e9).sort(1, descending=True)
        count = 3 * positive.sum(1, keepdim=True)
        rank = torch.arange(scores.shape[1], device=scores.device)
        return (worst * (rank < count)).clamp_min(0).sum()

    scores = torch.randn(4, 16, device=device, requires_grad=True)
    return loss, (scores, torch.rand(4, 16, device=device) < 0.1)


def hard_negatives_by_topk(device):
    def loss(scores, positive):
        worst = scores.masked_fill(positive, -1e9)
        k = 3 * positive.sum()
        return worst.flatten().topk(k).values.sum()  # guilty: k is a tensor of the device

    scores = torch.randn(4, 16, device=device, requires_grad=True)
    return loss, (scores, torch.rand(4, 16, device=device) < 0.1)


def ctc_of_a_batch(device):
    def loss(logits, targets, lengths, target_lengths):
        log_p = logits.log_softmax(-1)
        return functional.ctc_loss(log_p, targets, lengths, target_lengths)  # guilty: lengths

    logits = torch.randn(12, 2, 5, device=device, requires_grad=True)
    targets = torch.randint(1, 5, (2, 4), device=device)
    lengths = torch.full((2,), 12, device=device), torch.full((2,), 4, device=device)
    return loss, (logits, targets, *lengths)


def triplet_margin(device):
    net = nn.Linear(8, 4, device=device)

    def loss(a, p, n):
        return functional.triplet_margin_loss(net(a), net(p), net(n), margin=0.5)

    return loss, tuple(torch.randn(4, 8, device=device) for _ in range(3))


def contrastive_in_batch(device):
    image, text = nn.Linear(8, 4, device=device), nn.Linear(6, 4, device=device)
    temperature = nn.Parameter(torch.tensor(2.6, device=device))

    def loss(a, b):
        x, y = functional.normalize(image(a), dim=1), functional.normalize(text(b), dim=1)
        logits = x @ y.T * temperature.exp()
        labels = torch.arange(len(logits), device=logits.device)
        one, two = (
            functional.cross_entropy(logits, labels),
            functional.cross_entropy(logits.T, labels),
        )
        return (one + two) / 2

    return loss, (torch.randn(4, 8, device=device), torch.randn(4, 6, device=device))


def temperature_clamped_in_place(device):
    image = nn.Linear(8, 4, device=device)
    temperature = nn.Parameter(torch.tensor(5.0, device=device))

    def loss(a):
        with torch.no_grad():
            temperature.clamp_(0, math.log(100))
        x = functional.normalize(image(a), dim=1)
        return (x @ x.T * temperature.exp()).logsumexp(1).mean()

    return loss, (torch.randn(4, 8, device=device),)


def transformer_layer_eval(device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device).eval()

    @torch.no_grad()
    def encode(x):
        return layer(x)

    return encode, (torch.randn(2, 5, 16, device=device),)


def transformer_with_padding_mask(device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).to(device).eval()

    @torch.no_grad()
    def encode(x, padding):
        return encoder(x, src_key_padding_mask=padding)  # guilty: packs rows by reading the mask

    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
    return encode, (torch.randn(2, 5, 16, device=device), padding)


def transformer_decoder_training(device):
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device)

    def forward(target, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(5, device=target.device)
        return layer(target, memory, tgt_mask=mask)

    return forward, (torch.randn(2, 5, 16, device=device), torch.randn(2, 7, 16, device=device))

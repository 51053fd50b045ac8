"""Training: updates by hand, losses of the library, checks and records."""

import copy
import logging
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger(__name__)


class BiasCorrected:
    """Adam by hand; the powers of beta are kept in a numpy array."""

    def __init__(self, device):
        self.weight = torch.randn(5, 5, device=device)
        self.mean = torch.zeros_like(self.weight)
        self.power = np.ones(())

    @torch.no_grad()
    def __call__(self, gradient):
        # The power shrinks in each call of eager; a replay divides by that of the capture.
        self.power *= 0.9  # guilty: a number of the host, updated at capture only
        self.mean.lerp_(gradient, 0.1)
        self.weight.sub_(0.01 * self.mean / (1 - float(self.power)))  # guilty: frozen in the graph
        return self.weight.sum()


def adam_with_powers_in_numpy(device):
    return BiasCorrected(device), (torch.randn(5, 5, device=device),)


class NaturalStep:
    def __init__(self, device):
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)

    def __call__(self, x, y):
        parameters = list(self.net.parameters())
        loss = functional.mse_loss(self.net(x), y)  # guilty: reads the storage of the capture
        gradients = torch.autograd.grad(loss, parameters)
        flat = nn.utils.parameters_to_vector(parameters).detach()
        flat = flat - 0.1 * nn.utils.parameters_to_vector(gradients)
        # Sets param.data to slices of the new vector. A replay reads the storage that the
        # parameters had at capture, so each replay repeats the same step.
        nn.utils.vector_to_parameters(flat, parameters)  # guilty: parameters get other storage
        return loss.detach()


def parameters_set_from_a_vector(device):
    return NaturalStep(device), (torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))


def preconditioned_by_a_device_rate(device):
    weight = torch.randn(5, 5, device=device)
    square = torch.ones(5, 5, device=device)

    def f(gradient, rate):
        square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        # value is a number: a 0-dim tensor of the device is read with item().
        weight.addcdiv_(gradient, square.sqrt(), value=-rate)  # guilty: reads the rate
        return weight.sum()

    return f, (torch.randn(5, 5, device=device), torch.tensor(0.1, device=device))


def adagrad_with_a_decaying_rate(device):
    net = nn.Linear(4, 2).to(device)
    # The rate is lr / (1 + (step - 1) * lr_decay), of a step on the CPU: frozen.
    optimizer = torch.optim.Adagrad(
        net.parameters(), lr=0.1, lr_decay=0.5
    )  # guilty: steps on the host

    def f(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # guilty: the rate of the capture in each replay
        return loss.detach()

    return f, (torch.randn(6, 4, device=device),)


def muon_of_the_library(device):
    # Muon keeps no step: momentum buffers and matrix products only.
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)).to(
        device
    )
    optimizer = torch.optim.Muon(net.parameters(), lr=0.02)

    def f(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return f, (torch.randn(10, 6, device=device), torch.randn(10, 4, device=device))


class Reversal(torch.autograd.Function):
    """The gradient reversal of DANN; its strength grows with the calls."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        # Counts backwards on the host: a replay keeps the strength of the capture.
        Reversal.calls += 1  # guilty: a counter of the host in backward
        strength = 2 / (1 + math.exp(-Reversal.calls / 50)) - 1  # guilty: frozen in the graph
        return -strength * gradient  # guilty: the frozen strength


class Domains(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.domain = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.domain(Reversal.apply(torch.tanh(self.features(x))))


def reversal_that_grows(device):
    return Domains().to(device), (torch.randn(5, 4, device=device),)


def backward_in_anomaly_mode(device):
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).to(device)

    def f(x):
        net.zero_grad()
        # The engine asks each gradient isnan().any().item().
        with torch.autograd.detect_anomaly():  # guilty: NaN checks read each gradient
            loss = net(x).square().mean()  # guilty: backward of these is checked
            loss.backward()  # guilty: the checks happen here
        return loss.detach()

    return f, (torch.randn(6, 4, device=device),)


class FusedUpdates:
    """Each parameter is updated by a hook as soon as its gradient is there."""

    def __init__(self, device):
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
        self.rate = torch.tensor(0.1, device=device)
        for parameter in self.net.parameters():
            parameter.register_post_accumulate_grad_hook(self.update)

    @torch.no_grad()
    def update(self, parameter):
        norm = parameter.grad.norm()
        parameter.sub_(self.rate * parameter.grad / norm.clamp(min=1.0))
        parameter.grad = None

    def __call__(self, x):
        hidden = self.net[:2](x)
        hidden.register_hook(lambda gradient: gradient * self.rate)
        loss = self.net[2](hidden).square().mean()
        loss.backward()
        self.rate.mul_(0.99)
        return loss.detach()


def optimizer_in_the_hooks_of_backward(device):
    # All hooks work on the device, in place.
    return FusedUpdates(device), (torch.randn(6, 4, device=device),)


def copy_adapted_in_an_inner_loop(device):
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)

    def f(support, targets, query):
        # Copies the parameters on the device, in each replay too; the copy is updated in place.
        adapted = copy.deepcopy(net)
        for _ in range(2):
            loss = functional.mse_loss(adapted(support), targets)
            gradients = torch.autograd.grad(loss, list(adapted.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(adapted.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.1)
        return adapted(query).detach()

    inputs = [torch.randn(5, width, device=device) for width in (3, 1, 3)]
    return f, tuple(inputs)


def decoder_with_a_mask_to_recognize(device):
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 1).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=device)

    def f(target, memory):
        # Without tgt_is_causal the decoder compares the mask with a causal one: bool((==).all()).
        return decoder(target, memory, tgt_mask=mask)  # guilty: the mask is compared on the host

    return f, (torch.randn(2, 5, 8, device=device), torch.randn(2, 4, 8, device=device))


def likelihood_with_predicted_variance(device):
    net = nn.Linear(4, 2).to(device)

    def f(x, y):
        mean, raw = net(x).chunk(2, -1)
        # gaussian_nll_loss raises if any variance is negative: `elif torch.any(var < 0)`.
        return functional.gaussian_nll_loss(
            mean, y, functional.softplus(raw)
        )  # guilty: reads variances

    return f, (torch.randn(6, 4, device=device), torch.randn(6, 1, device=device))


def margins_of_all_pairs(device):
    net = nn.Linear(4, 1).to(device)

    def f(x):
        scores = net(x).squeeze(-1)
        # combinations is a masked_select of a grid, whose size is read.
        pairs = torch.combinations(scores, 2)  # guilty: masked_select inside
        return functional.softplus(pairs[:, 1] - pairs[:, 0]).mean()

    return f, (torch.randn(5, 4, device=device),)


def loss_formatted_for_nobody(device):
    net = nn.Linear(4, 1).to(device)

    def f(x):
        loss = net(x).square().mean()
        # The string is made although debug is off: the value is read.
        log.debug(f"loss {loss:.4f}")  # guilty: an f-string formats a device tensor
        return loss

    return f, (torch.randn(5, 4, device=device),)


def loss_logged_with_arguments(device):
    net = nn.Linear(4, 1).to(device)

    def f(x):
        loss = net(x).square().mean()
        # Debug is off: nothing is formatted.
        log.debug("loss %s of %s", loss, x)
        return loss

    return f, (torch.randn(5, 4, device=device),)


def gradients_asserted_on_the_device(device):
    net = nn.Linear(4, 3).to(device)

    def f(x, labels):
        logits = net(x)
        torch._assert_async(torch.isfinite(logits).all())
        return functional.cross_entropy(logits, labels, label_smoothing=0.1)

    return f, (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))


class Accuracy:
    def __init__(self, device):
        self.hits = torch.zeros((), dtype=torch.long, device=device)
        self.table = torch.zeros(9, dtype=torch.long, device=device)

    def __call__(self, logits, labels):
        guess = logits.argmax(-1)
        # += on an attribute that is a tensor works in place.
        self.hits += (guess == labels).sum()
        self.table.index_add_(0, labels * 3 + guess, torch.ones_like(labels))
        return self.hits / self.table.sum(), self.table.view(3, 3).diagonal().clone()


def accuracy_added_in_place(device):
    return Accuracy(device), (
        torch.randn(8, 3, device=device),
        torch.randint(0, 3, (8,), device=device),
    )


def smoothed(value, history=[]):  # noqa: B006
    # The list outlives the call: eager averages this and the last value, a replay its own value
    # and the one before the capture.
    history.append(value)  # guilty: happens on the host only
    del history[:-2]
    return sum(history) / len(history)  # guilty: reads the tensors of the capture


def loss_smoothed_by_a_default_argument(device):
    net = nn.Linear(4, 1).to(device)

    def f(x):
        with torch.no_grad():
            return smoothed(net(x).square().mean())  # guilty: its list is kept between calls

    return f, (torch.randn(5, 4, device=device),)

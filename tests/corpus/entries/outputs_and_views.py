"""Nested inputs and outputs, in-place operations, views, exceptions that are swallowed."""

import contextlib
import logging
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger(__name__)


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    hidden: tuple = ()


def dataclass_output(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x, y):
        logits = model(x)
        return Output(logits, functional.cross_entropy(logits, y), (x, logits.detach()))

    return forward, (torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device))


def dataclass_output_frozen_number(device):
    model = nn.Linear(8, 4, device=device)
    calls = [0]

    def forward(x):
        calls[0] += 1  # guilty: counted on the host
        return Output(model(x) + calls[0])  # guilty: the count of the capture

    return forward, (torch.randn(4, 8, device=device),)


class ModelOutput(OrderedDict):
    def __init__(self, **fields):
        super().__init__(fields)
        self.__dict__.update(fields)


def ordered_dict_output(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        logits = model(x)
        return ModelOutput(logits=logits, probabilities=logits.softmax(-1))

    return forward, (torch.randn(4, 8, device=device),)


def ordered_dict_output_rebound(device):
    model = nn.Linear(8, 4, device=device)
    memory = {"last": torch.zeros(4, 4, device=device)}

    def forward(x):
        out = ModelOutput(logits=model(x), last=memory["last"] * 1.0)  # guilty: an old tensor
        memory["last"] = out.logits.detach()  # guilty: rebound in each call
        return out

    return forward, (torch.randn(4, 8, device=device),)


class Result:
    def __init__(self, value, extra):
        self.value = value
        self.extra = extra


def plain_object_output(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        y = model(x)
        return Result(y.relu(), {"mean": y.mean()})

    return forward, (torch.randn(4, 8, device=device),)


def plain_object_with_a_moving_scale(device):
    model = nn.Linear(8, 4, device=device)
    scale = iter(range(1, 100_000))

    def forward(x):
        return Result(model(x) * next(scale), None)  # guilty: a number from an iterator

    return forward, (torch.randn(4, 8, device=device),)


Boxes = namedtuple("Boxes", "corners scores")


def named_tuples_in_and_out(device):
    def shift(boxes):
        return Boxes(boxes.corners + 1, boxes.scores.sigmoid())

    return shift, (Boxes(torch.rand(4, 4, device=device), torch.randn(4, device=device)),)


def dict_of_lists(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)

    def forward(batch):
        hidden = [batch["x"]]
        for layer in layers:
            hidden.append(layer(hidden[-1]).relu())
        return {"hidden": hidden[1:], "last": {"mean": hidden[-1].mean(1)}}

    return forward, ({"x": torch.randn(4, 8, device=device)},)


def none_among_the_outputs(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x, mask=None):
        y = model(x)
        return y, None if mask is None else y * mask, y.detach()

    return forward, (torch.randn(4, 8, device=device),)


def output_is_a_view_of_the_input(device):
    def heads(x):
        return x.view(4, 2, 4).transpose(0, 1), x.sum()

    return heads, (torch.randn(4, 8, device=device),)


def output_is_a_parameter(device):
    weight = nn.Parameter(torch.randn(4, 8, device=device))

    def forward(x):
        return x * weight, weight.detach()

    return forward, (torch.randn(4, 8, device=device),)


def in_place_activations(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 4)).to(device)
    return model, (torch.randn(4, 8, device=device),)


def writes_through_a_view(device):
    def mask_diagonal(x):
        y = x.clone()
        y.diagonal().fill_(0)
        y[:, 0] += 1
        return y

    return mask_diagonal, (torch.randn(8, 8, device=device),)


def writes_a_python_list_into_a_slice(device):
    def mark(x):
        y = x.clone()
        y[0, :2] = torch.tensor([1.0, 2.0])  # guilty: a copy from pageable memory
        return y

    return mark, (torch.randn(8, 8, device=device),)


def writes_numbers_into_a_slice(device):
    def mark(x):
        y = x.clone()
        y[0, :2] = 1.0
        y[1:3] = 2.0
        return y

    return mark, (torch.randn(8, 8, device=device),)


def writes_a_number_into_one_element(device):
    def mark(x):
        y = x.clone()
        y[0, 0] = 1.0  # guilty: for a single element the number is copied from the host
        return y

    return mark, (torch.randn(8, 8, device=device),)


def stacks_scalars(device):
    def summary(x):
        return torch.stack([x.sum(), x.mean(), x.amax()])

    return summary, (torch.randn(8, 8, device=device),)


def tensor_of_scalars(device):
    def summary(x):
        return torch.tensor([x.sum(), x.mean()], device=device)  # guilty: reads each of them

    return summary, (torch.randn(8, 8, device=device),)


def swallowed_formatting_error(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        y = model(x)
        try:
            text = f"{y.mean():.3f}"  # guilty: the capture ends here, though nobody hears of it
        except Exception:
            text = "n/a"
        log.debug(text)
        return y

    return forward, (torch.randn(4, 8, device=device),)


def swallowed_item(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        y = model(x)
        with contextlib.suppress(RuntimeError):
            log.debug("norm %f", y.norm().item())  # guilty: the capture ends here
        return y

    return forward, (torch.randn(4, 8, device=device),)


def swallowed_key_error(device):
    model = nn.Linear(8, 4, device=device)
    overrides = {}

    def forward(x):
        try:
            scale = overrides["scale"]
        except KeyError:
            scale = 0.5
        return model(x) * scale

    return forward, (torch.randn(4, 8, device=device),)


def falls_back_after_an_error(device):
    def solve(a, b):
        try:
            return torch.linalg.solve(a, b[:, :3, None])  # guilty: checks for errors on the host
        except RuntimeError:
            return torch.zeros_like(b)

    a = torch.eye(3, device=device).expand(2, 3, 3)
    return solve, (a, torch.randn(2, 4, device=device))


def retries_with_another_dtype(device):
    def product(x):
        try:
            y = x @ torch.ones(8, dtype=torch.float64, device=x.device)
        except RuntimeError:
            y = x.double() @ torch.ones(8, dtype=torch.float64, device=x.device)
        return y

    return product, (torch.randn(4, 8, device=device),)


def prints_progress(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        y = model(x)
        print("batch of", x.shape[0])
        return y

    return forward, (torch.randn(4, 8, device=device),)


def prints_a_mean(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x):
        y = model(x)
        print("mean", y.mean())  # guilty: printing a tensor copies it to the host
        return y

    return forward, (torch.randn(4, 8, device=device),)


def metric_as_a_number(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x, y):
        logits = model(x)
        right = (logits.argmax(-1) == y).sum()
        return logits, int(right) / len(y)  # guilty: the count is read on the host

    return forward, (torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device))


def metric_as_a_tensor(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x, y):
        logits = model(x)
        return logits, (logits.argmax(-1) == y).float().mean()

    return forward, (torch.randn(4, 8, device=device), torch.randint(4, (4,), device=device))


def confusion_matrix(device):
    counts = torch.zeros(4, 4, dtype=torch.long, device=device)

    def update(logits, y):
        flat = y * 4 + logits.argmax(-1)
        counts.view(-1).index_add_(0, flat, torch.ones_like(flat))
        return counts.diagonal().sum() / counts.sum()

    return update, (torch.randn(8, 4, device=device), torch.randint(4, (8,), device=device))


def keyword_arguments(device):
    model = nn.Linear(8, 4, device=device)

    def forward(x, *, scale, bias=None):
        y = model(x) * scale
        return y if bias is None else y + bias

    kwargs = {"scale": 0.5, "bias": torch.randn(4, device=device)}
    return forward, (torch.randn(4, 8, device=device),), kwargs


def generator_output(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)

    def features(x):
        for layer in layers:
            x = layer(x).relu()
            yield x

    def forward(x):
        return tuple(features(x))

    return forward, (torch.randn(4, 8, device=device),)


def adds_to_a_running_list(device):
    outs = [torch.zeros(4, device=device), torch.ones(4, device=device)]

    def fibonacci():
        outs.append(outs[-1] + outs[-2])  # guilty: replays add the same two
        return outs[-1] * 1.0  # guilty: replays add the same two

    return fibonacci


def adds_in_a_local_list(device):
    def powers(x):
        out = [x]
        for _ in range(4):
            out.append(out[-1] * x)
        return torch.stack(out)

    return powers, (torch.randn(4, device=device),)

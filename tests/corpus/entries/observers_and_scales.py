"""Quantization: observers, fake quantization, histories of maxima, codebooks."""

import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver
from torch.nn import functional


class QuantizedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.quantize = FakeQuantize(MinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x):
        return self.quantize(self.linear(x))  # guilty: `if self.observer_enabled[0] == 1`


def linear_with_fake_quantize(device):
    return QuantizedLinear().to(device), (torch.randn(4, 8, device=device),)


class Calibrated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.observer = MinMaxObserver()

    def forward(self, x):
        return self.observer(self.linear(x))


def calibration_with_a_min_max_observer(device):
    model = Calibrated().to(device).requires_grad_(False)
    return model, (torch.randn(4, 8, device=device),)


class AmaxLinear(nn.Module):
    """Delayed scaling: the scale comes from the largest value of the last calls."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.meta = {"amax": torch.ones(4)}

    def to_device(self, device):
        self.meta["amax"] = self.meta["amax"].to(device)
        return self.to(device)

    def quantized(self, x):
        scale = 448.0 / self.meta["amax"].amax()  # guilty: of the tensor at capture
        return (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale


class RolledAway(AmaxLinear):
    def forward(self, x):
        y = self.linear(self.quantized(x))
        history = self.meta["amax"].roll(-1)  # guilty: of the tensor at capture
        history[-1] = x.abs().amax()
        self.meta["amax"] = history  # guilty: the graph keeps reading the tensor before
        return y


def amax_history_is_replaced(device):
    model = RolledAway().to_device(device).requires_grad_(False)
    return model, (torch.randn(4, 8, device=device),)


class RolledInPlace(AmaxLinear):
    def forward(self, x):
        y = self.linear(self.quantized(x))
        self.meta["amax"].copy_(self.meta["amax"].roll(-1))
        self.meta["amax"][-1].copy_(x.abs().amax())
        return y


def amax_history_is_copied(device):
    model = RolledInPlace().to_device(device).requires_grad_(False)
    return model, (torch.randn(4, 8, device=device),)


class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.levels = levels
        ctx.save_for_backward(x)
        return torch.round(x.clamp(0, 1) * levels) / levels

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ((x > 0) & (x < 1)), None


def straight_through_rounding(device):
    layer = nn.Linear(6, 6).to(device)

    def quantized(x):
        return RoundThrough.apply(torch.sigmoid(layer(x)), 2**4 - 1)

    return quantized, (torch.randn(5, 6, device=device, requires_grad=True),)


class Codebook(nn.Module):
    """A vector quantizer whose codes follow the mean of what is assigned to them."""

    def __init__(self, codes, width):
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("sizes", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, z):
        index = torch.cdist(z, self.codes).argmin(-1)
        quantized = functional.embedding(index, self.codes)
        with torch.no_grad():
            chosen = functional.one_hot(index, self.codes.shape[0]).to(z.dtype)
            self.sizes.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(chosen.t() @ z, alpha=0.1)
            self.codes.copy_(self.sums / (self.sizes + 1e-5).unsqueeze(-1))
        return z + (quantized - z).detach()


def codebook_follows_its_members(device):
    quantizer = Codebook(6, 4).to(device)
    return quantizer, (torch.randn(10, 4, device=device),)

import torch
from torch import nn
from torch.nn import functional


class RoundedStraight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        scale = x.abs().amax().clamp(min=1e-5) / levels
        ctx.levels = levels
        ctx.save_for_backward(x, scale)
        return (x / scale).round() * scale

    @staticmethod
    def backward(ctx, slope):
        x, scale = ctx.saved_tensors
        inside = (x.abs() <= scale * ctx.levels).to(slope.dtype)
        return slope * inside, None


def rounded_with_a_straight_gradient(device):
    net = nn.Linear(4, 4).to(device)

    def f(x):
        hidden = RoundedStraight.apply(net(x), 7)
        hard = functional.gumbel_softmax(hidden, tau=0.5, hard=True)
        loss = (hard * hidden).sum(1).mean() + hidden.square().mean()
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        return loss.detach(), *slopes

    return f, (torch.randn(6, 4, device=device),)

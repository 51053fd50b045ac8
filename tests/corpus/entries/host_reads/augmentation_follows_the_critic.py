import torch
from torch import nn
from torch.nn import functional


def _mlp(device: str, inputs: int = 12, outputs: int = 16) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(inputs, 32), nn.GELU(), nn.Linear(32, outputs))
    return net.to(device)


class AdaptiveAugment:
    """StyleGAN2-ADA: the strength follows the sign of the logits of real images."""

    def __init__(self, target=0.6, speed=0.01):
        self.target, self.speed, self.p = target, speed, 0.0

    def __call__(self, x):
        flip = torch.rand(len(x), 1, device=x.device) < self.p
        return torch.where(flip, x.flip(1), x)

    def update(self, logits):
        sign = torch.sign(logits.detach().sign().mean() - self.target)
        self.p = min(max(self.p + self.speed * sign.item(), 0.0), 1.0)  # <- sync-item


def _discriminating(device, augment):
    critic, generator = _mlp(device, 12, 1), _mlp(device, 4, 12).requires_grad_(False)
    opt = torch.optim.SGD(critic.parameters(), 0.05)
    real = torch.randn(16, 12, device=device)

    def step():
        opt.zero_grad()
        fake = generator(torch.randn(16, 4, device=real.device))
        on_real = critic(augment(real))
        loss = functional.softplus(critic(augment(fake))) + functional.softplus(-on_real)
        loss.mean().backward()
        opt.step()
        augment.update(on_real)
        return loss.detach()

    return step


def augmentation_follows_the_critic(device):
    return _discriminating(device, AdaptiveAugment())

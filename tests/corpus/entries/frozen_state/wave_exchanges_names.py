import torch


class SwappedWave:
    def __init__(self, device):
        self.now = torch.randn(16, 16, device=device)
        self.before = self.now.clone()

    def step(self):
        neighbors = sum(
            self.now.roll(s, d) for s in (1, -1) for d in (0, 1)
        )  # <- metadata-address-changed
        laplacian = neighbors - 4 * self.now  # <- metadata-address-changed
        following = 2 * self.now - self.before + 0.1 * laplacian  # <- metadata-address-changed
        self.before, self.now = self.now, following  # <- metadata-address-changed
        return following


def wave_exchanges_names(device):
    return SwappedWave(device).step

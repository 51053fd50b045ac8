import torch
from torch import nn


class PromptConditioned(nn.Module):
    """Encodes the prompt again only if somebody has written to it."""

    def __init__(self):
        super().__init__()
        self.encode, self.denoise = nn.Linear(6, 8), nn.Linear(8, 8)
        self.version, self.encoded = None, None

    @torch.no_grad()
    def forward(self, latent, prompt):
        if prompt._version != self.version:  # <- control-flow-frozen
            self.encoded = self.encode(prompt).relu()  # <- control-flow-frozen
            self.version = prompt._version
        return self.denoise(latent) + self.encoded  # <- control-flow-frozen


def prompt_encoding_kept_by_version(device):
    inputs = torch.randn(3, 8, device=device), torch.randn(3, 6, device=device)
    return PromptConditioned().to(device), inputs

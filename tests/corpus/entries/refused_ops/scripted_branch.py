import torch


class Limited(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 3).any()):  # <- hidden-sync-in-stock-module
            x = x / 2
        return x


def scripted_branch(device):
    limited = torch.jit.script(Limited())
    return (lambda x: limited(x)), (
        torch.randn(4, device=device),
    )  # <- hidden-sync-in-stock-module

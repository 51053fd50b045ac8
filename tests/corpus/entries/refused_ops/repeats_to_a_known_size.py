import torch


def repeats_to_a_known_size(device):
    counts = torch.tensor([1, 2, 0, 1], device=device)

    def forward(x):
        return x.repeat_interleave(counts, 0, output_size=4)

    return forward, (torch.randn(4, 6, device=device),)

import torch


def loudness_histogram_without_a_range(device):
    audio = torch.randn(4, 256, device=device)

    def histogram(audio):
        level = audio.square().mean(-1).add(1e-6).log()
        counts = torch.histc(level, bins=10)  # <- sync-d2h-copy
        return counts / counts.sum()

    return histogram, (audio,)

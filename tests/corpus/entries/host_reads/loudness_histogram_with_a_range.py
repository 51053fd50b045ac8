import torch


def loudness_histogram_with_a_range(device):
    audio = torch.randn(4, 256, device=device)

    def histogram(audio):
        level = audio.square().mean(-1).add(1e-6).log()
        counts = torch.histc(level, bins=10, min=-12.0, max=4.0)
        return counts / counts.sum()

    return histogram, (audio,)

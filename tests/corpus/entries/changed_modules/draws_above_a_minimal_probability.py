import torch


def draws_above_a_minimal_probability(device):
    def f(logits):
        probabilities = logits.softmax(-1)
        floor = 0.1 * probabilities.amax(-1, keepdim=True)
        kept = torch.where(probabilities < floor, 0.0, probabilities)
        # multinomial() checks its weights with asserts on the device.
        return torch.multinomial(kept, 1)

    return f, (torch.randn(3, 12, device=device),)

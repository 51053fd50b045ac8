import torch


class DraftLength:
    """Drafts more tokens after a success: the length is a number of the host."""

    def __init__(self):
        self.length, self.up = 2, True

    def adapt(self):
        self.length += 1 if self.up else -1  # <- control-flow-frozen
        if self.length in (1, 6):
            self.up = not self.up  # <- control-flow-frozen


def drafts_of_a_changing_length(device):
    policy = DraftLength()
    head = torch.randn(8, 8, device=device)

    def f(hidden):
        total = torch.zeros_like(hidden)
        for _ in range(policy.length):  # <- control-flow-frozen
            hidden = torch.tanh(hidden @ head)
            total += hidden  # <- control-flow-frozen
        policy.adapt()  # <- control-flow-frozen
        return total

    return f, (torch.randn(2, 8, device=device),)

import torch


class RingOfTransitions:
    def __init__(self, device):
        self.states = torch.zeros(16, 3, device=device)
        self.slot = torch.zeros(4, dtype=torch.long, device=device) + torch.arange(4, device=device)

    def __call__(self, batch):
        self.states.index_copy_(0, self.slot, batch)
        self.slot.add_(4).remainder_(16)
        picks = torch.randint(0, 16, (6,), device=batch.device)
        return self.states.index_select(0, picks).mean(0)


def replay_memory_with_a_device_pointer(device):
    # The write position is a tensor on the device: it moves in a replay.
    return RingOfTransitions(device), (torch.randn(4, 3, device=device),)

import torch


class Lease:
    """A block of a pool; who drops it waits until the device is done with it."""

    def __init__(self, block):
        self.block = block

    def __del__(self):
        torch.cuda.synchronize()  # <- explicit-synchronize


def lease_ends_with_a_wait(device):
    block = torch.empty(8, device=device)

    def step(x):
        lease = Lease(block)
        lease.block.copy_(x)
        y = lease.block * 2
        del lease  # <- explicit-synchronize
        return y

    return step, (torch.randn(8, device=device),)

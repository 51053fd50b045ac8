import torch


def draws_the_same_noise_twice(device):
    def both_ways(x):
        before = torch.cuda.get_rng_state()
        up = x + torch.randn_like(x)
        torch.cuda.set_rng_state(before)
        down = x - torch.randn_like(x)
        return up, down

    return both_ways, (torch.randn(4, 8, device=device),)

import torch


def keeps_and_restores_the_rng_state(device):
    def augment(x):
        # PyTorch 2.11 permits both calls in a capture. But a graph whose random ops add up to no
        # offset gets no new seed before a replay (CUDAGeneratorState::replay_prologue).
        before = torch.cuda.get_rng_state()
        y = x + 0.1 * torch.randn_like(x)
        torch.cuda.set_rng_state(before)  # <- rng-state-set-in-capture
        return y

    return augment, (torch.randn(2, 8, device=device),)

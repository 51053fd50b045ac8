import torch


def staged_step_number(device):
    host = torch.zeros(1, pin_memory=True)
    on_device = torch.zeros(1, device=device)
    state = {"step": 0}

    @torch.no_grad()
    def scale(x):
        state["step"] += 1
        host[0] = state["step"]  # <- cpu-work-in-region
        on_device.copy_(host, non_blocking=True)  # <- cpu-work-in-region
        return x / on_device

    return scale, (torch.randn(4, device=device),)

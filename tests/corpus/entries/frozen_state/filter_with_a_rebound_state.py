import torch


class Kalman:
    def __init__(self, device):
        self.state = torch.zeros(3, device=device)
        self.cov = torch.eye(3, device=device)
        self.move = torch.randn(3, 3, device=device) * 0.4

    def __call__(self, seen):
        state = self.move @ self.state  # <- metadata-address-changed
        cov = self.move @ self.cov @ self.move.t() + 0.1 * torch.eye(
            3, device=seen.device
        )  # <- metadata-address-changed
        gain = cov[:, 0] / (cov[0, 0] + 0.5)
        # Other tensors each time; a replay predicts from those of the capture.
        self.state = state + gain * (seen - state[0])  # <- metadata-address-changed
        self.cov = cov - torch.outer(gain, cov[0])  # <- metadata-address-changed
        return self.state.clone()


def filter_with_a_rebound_state(device):
    return Kalman(device), (torch.randn((), device=device),)

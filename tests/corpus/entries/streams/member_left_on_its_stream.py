import torch


class TwoModels:
    def __init__(self, device):
        self.side = torch.cuda.Stream()
        self.weights = torch.randn(2, 8, 8, device=device)
        self.spare = torch.zeros(8, device=device)

    def __call__(self, x):
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            # The stream joins the capture and is never waited for: the capture cannot end.
            self.spare.copy_(torch.tanh(self.weights[1] @ x))  # <- unjoined-side-stream
        return torch.tanh(self.weights[0] @ x)


def member_left_on_its_stream(device):
    return TwoModels(device), (torch.randn(8, device=device),)

import torch

FORBIDDEN = [5, 9]


def forbidden_tokens_of_a_list(device):
    def f(logits):
        logits = logits.clone()
        # The list becomes a tensor on the host, which is copied to the device in each call.
        logits[:, FORBIDDEN] = float("-inf")  # <- h2d-index-with-list-or-cpu-tensor
        return logits.softmax(-1)

    return f, (torch.randn(3, 12, device=device),)

import heapq

import torch


def beams_kept_by_a_heap(device):
    def f(scores, states):
        # The heap compares 0-dim tensors: each comparison is a bool() of a device tensor.
        best = heapq.nlargest(2, scores.sum(-1).unbind())  # <- sync-truth-value
        return torch.stack(best)[:, None] * states[:2]

    return f, (torch.randn(5, 3, device=device), torch.randn(5, 4, device=device))

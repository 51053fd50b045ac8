import torch


def rejected_drafts_are_overwritten(device):
    @torch.no_grad()
    def reject(tokens, rows):
        out = tokens.clone()
        out[rows] = -1  # <- h2d-index-with-list-or-cpu-tensor
        return out

    return reject, (torch.arange(8, device=device), torch.tensor([1, 5], device=device))

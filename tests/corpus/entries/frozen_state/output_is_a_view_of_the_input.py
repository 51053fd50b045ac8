import torch


def output_is_a_view_of_the_input(device):
    def heads(x):
        return x.view(4, 2, 4).transpose(0, 1), x.sum()

    return heads, (torch.randn(4, 8, device=device),)

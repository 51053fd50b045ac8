import torch


def topk_under_inference_mode(device):
    @torch.inference_mode()
    def best(x):
        values, index = x.topk(3)
        return values.softmax(-1), index

    return best, (torch.randn(4, 8, device=device),)

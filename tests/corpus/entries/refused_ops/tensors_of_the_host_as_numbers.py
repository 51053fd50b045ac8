import torch


def tensors_of_the_host_as_numbers(device):
    half = torch.tensor(0.5)

    def forward(x):
        y = torch.addcmul(x, x, half).lerp(x, half) // half
        return *torch._foreach_mul([y, x], half), *torch._foreach_add([x], [half])

    return forward, (torch.randn(4, 6, device=device),)

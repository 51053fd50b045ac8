import ctypes

import torch


def data_pointer_for_a_library(device):
    seen = ctypes.c_void_p()

    def forward(x):
        seen.value = x.data_ptr()
        return x * 2

    return forward, (torch.randn(4, 16, device=device),)

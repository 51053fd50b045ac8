"""One step of generate.py, as an ENTRY.

cgtool check samples/from_script/generate_entry.py:build
"""

import torch
from generate import LanguageModel


def build(device: str):
    model = LanguageModel().to(device).eval()
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    position = torch.zeros(1, dtype=torch.int64, device=device)
    return model, (token, position)

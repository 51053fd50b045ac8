import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def packed_in_any_order(device):
    rnn = nn.GRU(8, 8, batch_first=True, device=device)
    lengths = torch.tensor([3, 5, 2])

    def encode(x):
        packed = pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )  # <- h2d-pageable-copy
        out, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
        return out.mean(1)

    return encode, (torch.randn(3, 5, 8, device=device),)

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 5, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(
            x, lengths.to("cpu"), batch_first=True, enforce_sorted=False
        )  # <- h2d-pageable-copy
        out, _ = self.rnn(packed)
        return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[
            0
        ]  # <- sync-d2h-copy


def packed_sequences(device):
    torch.manual_seed(0)
    return Encoder().to(device), (
        torch.randn(3, 7, 6, device=device),
        torch.tensor([7, 3, 5], device=device),
    )

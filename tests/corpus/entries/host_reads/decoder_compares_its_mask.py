import torch
from torch import nn


def decoder_compares_its_mask(device):
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 1).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(6, device=device)
    memory = torch.randn(2, 4, 16, device=device)

    def forward(x):
        return decoder(x, memory, tgt_mask=mask)  # <- hidden-sync-in-stock-module

    return forward, (torch.randn(2, 6, 16, device=device),)

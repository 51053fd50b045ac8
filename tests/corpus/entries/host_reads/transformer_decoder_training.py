import torch
from torch import nn


def transformer_decoder_training(device):
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device)

    def forward(target, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(5, device=target.device)
        return layer(target, memory, tgt_mask=mask)

    return forward, (torch.randn(2, 5, 16, device=device), torch.randn(2, 7, 16, device=device))

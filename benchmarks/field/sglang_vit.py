# /// script
# dependencies = ["sglang==0.5.23"]
# [tool.field]
# package = "sglang"
# version = "0.5.23"
# ///
"""`ViTCudaGraphRunner`: a graph for each length and attention layout of a vision encoder.

The runner is the package's own; what it imports beside PyTorch is a type and the state of tensor
parallelism, and both are left out. The runner's key has the boundaries of the attention, so the
tensor `cu_seqlens` of the first call, which the graph keeps, is right for every later call.
"""

from unused import leave_out, without_init

without_init("sglang", "srt", "srt.multimodal")
leave_out("sglang.srt.layers.attention.vision", "sglang.srt.runtime_context")

import torch
from sglang.srt.multimodal.vit_cuda_graph_runner import ViTCudaGraphRunner
from torch import nn

torch.manual_seed(0)
HEADS, SIZE = 2, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)
        self.attn = nn.Module()
        self.attn.qkv_backend_name = "triton_attn"
        self.attn.num_attention_heads_per_partition, self.attn.head_size = HEADS, SIZE

    def forward(self, x, cu_seqlens, position_embeddings, output_ws):
        ends = cu_seqlens[0][1:]
        image = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)
        mask = image[:, None] == image[None, :]
        cos, sin = position_embeddings
        q, k, v = self.qkv(x[:, 0]).view(len(x), 3, HEADS, SIZE).permute(1, 2, 0, 3)
        q = q * cos + q.roll(SIZE // 2, -1) * sin
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output_ws.copy_(out.transpose(0, 1))
        return x + output_ws.reshape(x.shape)


class Encoder(nn.Module):
    device, dtype, use_data_parallel = torch.device("cuda"), torch.float32, True

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.merger = nn.Linear(HEADS * SIZE, 4)


encoder = Encoder().cuda()
runner = ViTCudaGraphRunner(encoder)
for layout in ([0, 2, 6], [0, 3, 6], [0, 2, 6], [0, 8], [0, 3, 6]):
    cu_seqlens = torch.tensor(layout, dtype=torch.int32, device="cuda")
    x = torch.randn(layout[-1], HEADS * SIZE, device="cuda")
    angles = torch.randn(layout[-1], SIZE, device="cuda")
    positions = angles.cos(), angles.sin()
    with torch.no_grad():
        out = runner.run(x, cu_seqlens, None, positions)
        expected, space = x[:, None], torch.empty(len(x), HEADS, SIZE, device="cuda")
        for block in encoder.blocks:
            expected = block(expected, [cu_seqlens], positions, space)
        torch.testing.assert_close(out, encoder.merger(expected))

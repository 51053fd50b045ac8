# /// script
# dependencies = ["sglang==0.5.23"]
# [tool.field]
# package = "sglang"
# version = "0.5.23"
# ///
"""`BreakableCUDAGraph`: a forward as segments of graphs, with attention as an eager break.

The module is the package's own. Three functions that tell the platform take its place from
`sglang.srt.utils`, and a view without ownership, which is a C++ kernel, is an alias here.
During the capture, the eager part runs on what no replay has computed, for its outputs' addresses.
"""

from unused import leave_out, without_init

ROOT = "srt.model_executor.runner_backend_utils"
without_init("sglang", "srt", "srt.model_executor", ROOT, f"{ROOT}.breakable_cuda_graph")
leave_out("sglang.srt.utils", f"sglang.{ROOT}.weak_ref_tensor")

import torch
from sglang.srt import utils
from sglang.srt.model_executor.runner_backend_utils import weak_ref_tensor

utils.get_device_module = lambda: torch.cuda
utils.is_hip = utils.is_xpu = lambda: False
weak_ref_tensor.weak_ref_tensors = lambda tensor: tensor.detach()

from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph import (  # noqa: E501
    BreakableCUDAGraph,
    BreakableCUDAGraphCapture,
    eager_on_graph,
)
from torch import nn

torch.manual_seed(0)
ROWS, SIZE = 8, 16


class Batch:
    length = ROWS  # read by the eager part


@eager_on_graph
def attention(q, k, v):
    mask = torch.arange(ROWS, device=q.device) < Batch.length
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[None])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(attention(q[None], k[None], v[None])[0])


model = nn.Sequential(Layer(), Layer(), nn.LayerNorm(SIZE)).cuda()
x = torch.zeros(ROWS, SIZE, device="cuda")
stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
with torch.no_grad():
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(x)
    torch.cuda.synchronize()
    graph = BreakableCUDAGraph()
    with BreakableCUDAGraphCapture(graph, pool=pool, stream=stream):
        out = model(x)
    torch.cuda.synchronize()
    for Batch.length in (8, 3, 5, 3):
        x.copy_(torch.randn(ROWS, SIZE))
        graph.replay()
        torch.testing.assert_close(out, model(x))
        print(Batch.length, float(out.square().mean()))

# /// script
# dependencies = ["vllm==0.33.0", "regex", "packaging", "numpy"]
# [tool.field]
# package = "vllm"
# version = "0.33.0"
# ///
"""vLLM's `CUDAGraphWrapper`: a graph for each number of tokens, in one pool, largest first.

The wrapper and the forward context are the package's own. Its configuration, platform and engine
are left out, and its op `weak_ref_tensor` is replaced by one that keeps the outputs alive.
"""

from types import SimpleNamespace

from unused import leave_out, without_init

without_init("vllm", "compilation", "model_executor", "model_executor.offloader", "utils")
UNUSED = "config", "device_allocator", "distributed", "platforms", "sequence", "v1"
leave_out(*(f"vllm.{name}" for name in UNUSED))

import torch
import vllm.platforms
from torch import nn
from vllm.config import CUDAGraphMode

POOL = torch.cuda.graph_pool_handle()
vllm.platforms.current_platform = SimpleNamespace(
    get_global_graph_pool=lambda: POOL,
    is_cuda=lambda: True,
    is_rocm=lambda: False,
    is_pin_memory_available=lambda: True,
    is_uva_available=lambda: False,
)
torch.library.define("_C::weak_ref_tensor", "(Tensor(a) x) -> Tensor(a)")
torch.library.impl("_C::weak_ref_tensor", "CompositeImplicitAutograd", lambda x: x.detach())

from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.compilation.monitor import set_cudagraph_capturing_enabled
from vllm.forward_context import BatchDescriptor, ForwardContext, override_forward_context

torch.manual_seed(0)
SIZES, WORDS, WIDTH = (8, 4, 2, 1), 32, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH))

    def forward(self, tokens, positions):
        x = self.embed(tokens) + positions[:, None] / max(SIZES)
        return (x + self.mlp(x)) @ self.embed.weight.T


model = Model().cuda()
config = SimpleNamespace(compilation_config=None, use_cumem_cudagraph_pool=False)
wrapped = CUDAGraphWrapper(model, config, CUDAGraphMode.FULL)
tokens, positions = torch.zeros(2, max(SIZES), dtype=torch.long, device="cuda")


def run(size, mode):
    key = BatchDescriptor(size)
    context = ForwardContext({}, {}, {}, cudagraph_runtime_mode=mode, batch_descriptor=key)
    with override_forward_context(context):
        return wrapped(tokens[:size], positions[:size])


with torch.inference_mode():
    for size in SIZES:
        run(size, CUDAGraphMode.NONE)
        run(size, CUDAGraphMode.FULL)
    set_cudagraph_capturing_enabled(False)
    for count in (3, 8, 1, 5, 2, 4, 7, 6, 1):
        batch, places = torch.randint(WORDS, (count,)), torch.randperm(count)
        tokens[:count].copy_(batch)
        positions[:count].copy_(places)
        out = run(min(each for each in SIZES if each >= count), CUDAGraphMode.FULL)[:count]
        torch.testing.assert_close(out, model(batch.cuda(), places.cuda()))
        print(count, out.argmax(-1).tolist())

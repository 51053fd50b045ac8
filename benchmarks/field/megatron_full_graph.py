# /// script
# dependencies = ["megatron-core==0.16.1", "numpy", "packaging"]
# [tool.field]
# package = "megatron-core"
# version = "0.16.1"
# [[tool.field.true]]
# code = "unsynchronized-io"
# file = "megatron/core/full_cuda_graph.py"
# function = "__call__"
# ///
"""`FullCudaGraphWrapper`: forward and backward of two microbatches in one graph.

`StaticBufferLoader` copies the next batch on a stream of its own, which never waits for the replay
that still reads the static buffers.
"""

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.enums import ModelType
from megatron.core.full_cuda_graph import FullCudaGraphWrapper
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
from megatron.core.transformer import MegatronModule, TransformerConfig
from torch import nn

ITERATIONS = 6
SIZES = {"num_microbatches": 2, "seq_length": 8, "micro_batch_size": 32}


class Net(MegatronModule):
    def __init__(self):
        config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=2)
        super().__init__(config)
        self.model_type = ModelType.encoder_or_decoder
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def set_input_tensor(self, tensor):
        pass

    def forward(self, x):
        return self.layers(x)


def forward_step(data_iterator, model):
    batch = next(data_iterator)

    def loss(output):
        mean = (output - batch["target"]).square().mean()
        return mean, {"loss": mean.detach()}

    return model(batch["x"]), loss


def batches():
    while True:
        x = torch.randn(32, 8)
        yield {"x": x.pin_memory(), "target": x.sum(1, keepdim=True).pin_memory()}


store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
parallel_state.initialize_model_parallel()
tensor_parallel.random.initialize_rng_tracker(use_cudagraphable_rng=True)
torch.manual_seed(0)
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
run = FullCudaGraphWrapper(forward_backward_no_pipelining, cuda_graph_warmup_steps=2)
data, losses = batches(), []
for _ in range(ITERATIONS):
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    results = run(
        forward_step_func=forward_step, data_iterator=data, model=[net], forward_only=False, **SIZES
    )
    optimizer.step()
    losses.append(torch.stack([each["loss"] for each in results]))
print(torch.stack(losses).tolist())
torch.distributed.destroy_process_group()

# /// script
# dependencies = ["megatron-core==0.16.1", "numpy", "packaging"]
# [tool.field]
# package = "megatron-core"
# version = "0.16.1"
# [[tool.field.true]]
# code = "saved-tensor-overwritten"
# file = "megatron/core/transformer/cuda_graphs.py"
# function = "backward"
# ///
"""Two transformer layers with `cuda_graph_impl="local"`: a forward and a backward graph for each.

`create_fwd_graph` returns the static input of the first layer to the pool of buffers, and
`create_bwd_graph` takes it as the static `grad_output` of the last. So a gradient is copied over
the input that the first layer saved, before the backward of that layer is replayed.
"""

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.enums import ModelType
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlock

SEQUENCE, BATCH, SIZE, STEPS = 4, 2, 16, 6
SIZES = {"num_microbatches": 1, "seq_length": SEQUENCE, "micro_batch_size": BATCH}


class Net(MegatronModule):
    def __init__(self, implementation):
        config = TransformerConfig(
            num_layers=2, hidden_size=SIZE, num_attention_heads=2, cuda_graph_impl=implementation
        )
        config.hidden_dropout = config.attention_dropout = 0.0
        super().__init__(config)
        self.model_type = ModelType.encoder_or_decoder
        self.block = TransformerBlock(config, get_gpt_layer_local_spec())

    def set_input_tensor(self, tensor):
        pass

    def forward(self, x):
        return self.block(x, attention_mask=None)


def train(implementation):
    seed = tensor_parallel.model_parallel_cuda_manual_seed
    seed(0, use_cudagraphable_rng=True, force_reset_rng=True)
    net = Net(implementation).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    generator, losses = torch.Generator().manual_seed(0), []

    def forward_step(data_iterator, model):
        x, target = torch.randn(2, SEQUENCE, BATCH, SIZE, generator=generator).cuda()

        def loss(out):
            result = (out - target).square().mean()
            return result, {"loss": result.detach()}

        return model(x.requires_grad_()), loss

    for _ in range(STEPS):
        optimizer.zero_grad()
        results = forward_backward_no_pipelining(
            forward_step_func=forward_step, data_iterator=None, model=[net], **SIZES
        )
        optimizer.step()
        losses.append(results[0]["loss"].clone())
    grad = net.block.layers[0].input_layernorm.weight.grad
    return torch.stack(losses).tolist(), float(grad.abs().sum())


store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
parallel_state.initialize_model_parallel()
print("eager ", train("none"))
print("graphs", train("local"))
torch.distributed.destroy_process_group()

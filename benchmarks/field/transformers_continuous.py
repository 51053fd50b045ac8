# /// script
# dependencies = [
#     "transformers==5.17.0", "tokenizers==0.23.3", "safetensors==0.8.0", "huggingface-hub==1.32.0",
#     "regex", "tqdm", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "hf-xet",
#     "packaging", "pyyaml", "filelock", "fsspec", "typer", "typer-slim", "psutil", "numpy",
# ]
# [tool.field]
# package = "transformers"
# version = "5.17.0"
# [[tool.field.true]]
# code = "unsynchronized-io"
# file = "continuous_batching/model_runner.py"
# function = "compute_batch"
# ///
"""`generate_batch` with CUDA graphs and synchronous batching.

The inputs of a batch are written on the default stream, and the graph is replayed on
`compute_stream`, which does not wait for it (`ModelRunner.compute_batch`).
"""

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=128,
    attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).cuda().eval()
generation = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
batching = ContinuousBatchingConfig(
    block_size=16,
    num_blocks=16,
    max_batch_tokens=64,
    max_requests_per_batch=4,
    use_cuda_graph=True,
    use_async_batching=False,
    q_padding_interval_size=16,
    kv_padding_interval_size=64,
)
prompts = torch.randint(1, 64, (3, 8), generator=torch.Generator().manual_seed(0)).tolist()
outputs = model.generate_batch(
    prompts, generation_config=generation, continuous_batching_config=batching, warmup=False
)
tokens = [output.generated_tokens for output in outputs.values()]
print(tokens)
assert [len(each) for each in tokens] == [6] * len(prompts), "the batch processor failed"

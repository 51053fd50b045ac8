# /// script
# dependencies = [
#     "deepspeed==0.19.8", "einops==0.8.2", "hjson==3.1.0", "msgpack", "py-cpuinfo==9.0.0",
#     "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "psutil",
#     "transformers==4.57.6", "tokenizers==0.22.2", "safetensors==0.8.0", "huggingface-hub==0.36.2",
#     "regex", "tqdm", "requests", "urllib3", "charset-normalizer", "idna", "certifi", "packaging",
#     "pyyaml", "filelock", "fsspec", "numpy",
# ]
# [tool.field]
# package = "deepspeed"
# version = "0.19.8"
# variables = { DS_BUILD_OPS = "0" }
# ///
"""`HybridEngineRollout` with graphs and continuous batching, between steps of the optimizer.

Its key has the versions of all parameters, so that each step of the optimizer makes it capture
again. It needs no more of the engine than the model, and that is all that it gets here.
"""

from types import SimpleNamespace

import torch
from deepspeed.runtime.rollout.base import RolloutRequest, SamplingConfig
from deepspeed.runtime.rollout.hybrid_engine_rollout import (
    HybridEngineRollout,
    HybridEngineRolloutConfig,
)
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
STEPS, PROMPTS, LENGTH, NEW = 3, 5, 4, 6
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
    attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=7)
sampling = SamplingConfig(max_new_tokens=NEW, temperature=0.0, continuous_batch_size=2)
graphed, eager = (
    HybridEngineRollout(
        SimpleNamespace(module=model),
        tokenizer,
        HybridEngineRolloutConfig(use_graph_capture=each),
    )
    for each in (True, False)
)
for _ in range(STEPS):
    prompts = torch.randint(8, 64, (PROMPTS, LENGTH), device="cuda")
    mask = torch.ones_like(prompts)
    mask[0, 0] = 0
    out = graphed.generate(RolloutRequest(prompts, mask), sampling)
    expected = eager.generate(RolloutRequest(prompts, mask), sampling)
    assert torch.equal(out.input_ids, expected.input_ids)
    tokens, attention = out.input_ids, out.attention_mask
    loss = model(tokens, attention_mask=attention, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())

# /// script
# dependencies = [
#     "transformers==5.17.0", "tokenizers==0.23.3", "safetensors==0.8.0", "huggingface-hub==1.32.0",
#     "regex", "tqdm", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "hf-xet",
#     "packaging", "pyyaml", "filelock", "fsspec", "typer", "typer-slim", "psutil", "numpy",
# ]
# [tool.field]
# package = "transformers"
# version = "5.17.0"
# ///
"""A decoding step with `StaticCache`, captured by hand as PyTorch's notes say."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(0)
LENGTH, PROMPT = 16, 5
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=LENGTH,
    attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).cuda().eval()
prompt = torch.randint(64, (1, PROMPT), device="cuda")


@torch.no_grad()
def decode(graphed):
    cache = StaticCache(config=config, max_cache_len=LENGTH)
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    position = torch.zeros(1, dtype=torch.long, device="cuda")

    def step():
        logits = model(
            token,
            past_key_values=cache,
            cache_position=position,
            position_ids=position[None],
            use_cache=True,
        ).logits
        token.copy_(logits[:, -1:].argmax(-1))

    positions = torch.arange(PROMPT, device="cuda")
    logits = model(prompt, past_key_values=cache, cache_position=positions).logits
    token.copy_(logits[:, -1:].argmax(-1))
    tokens, graph = [], None
    for index in range(PROMPT, LENGTH):
        position.fill_(index)
        if graphed and index == PROMPT + 2:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        if graph is not None:
            graph.replay()
        else:
            step()
        tokens.append(token.clone())
    return torch.cat(tokens, 1).tolist()


expected = decode(graphed=False)
print(expected)
assert decode(graphed=True) == expected

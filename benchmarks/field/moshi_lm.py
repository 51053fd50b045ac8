# /// script
# dependencies = [
#     "moshi==0.2.13", "einops==0.8.2", "safetensors==0.8.0", "huggingface-hub==1.32.0", "tqdm",
#     "sentencepiece", "sphn", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio",
#     "hf-xet", "packaging", "pyyaml", "filelock", "fsspec", "numpy",
# ]
# [tool.field]
# package = "moshi"
# version = "0.2.13"
# ///
"""`LMGen` with its graphs (moshi.utils.compile.CUDAGraphed): step after step, then a reset."""

import torch
from moshi.models.lm import LMGen, LMModel

torch.manual_seed(0)
STEPS = 6


def model():
    return LMModel(
        delays=[0, 0, 1, 0, 1],
        n_q=4,
        dep_q=2,
        card=32,
        text_card=48,
        dim=32,
        num_heads=2,
        num_layers=2,
        hidden_scale=2,
        context=16,
        norm="rms_norm_f32",
        positional_embedding="rope",
        depformer_dim=32,
        depformer_num_heads=2,
        depformer_num_layers=2,
        depformer_multi_linear=True,
        depformer_weights_per_step=True,
        gating="silu",
        depformer_pos_emb="none",
        device="cuda",
    ).eval()


def generate(generator):
    tokens = []
    for step in range(STEPS):
        out = generator.step(torch.full((2, 2, 1), step, device="cuda"))
        if out is not None:
            tokens.append(out)
    return torch.cat(tokens, dim=-1)


generator = LMGen(model(), use_sampling=False)
with generator.streaming(2):
    first = generate(generator)
    generator.reset_streaming()
    second = generate(generator)
print(first[0].tolist())
assert torch.equal(first, second)

sampler = LMGen(generator.lm_model, use_sampling=True, top_k=8)
with sampler.streaming(2):
    print(generate(sampler)[0].tolist())

# /// script
# dependencies = [
#     "mamba-ssm==2.3.1", "einops==0.8.2", "transformers==5.17.0", "tokenizers==0.23.3",
#     "safetensors==0.8.0", "huggingface-hub==1.32.0", "regex", "tqdm", "httpx", "httpcore", "h11",
#     "anyio", "idna", "certifi", "sniffio", "hf-xet", "packaging", "pyyaml", "filelock", "fsspec",
#     "typer", "typer-slim", "numpy",
# ]
# [tool.field]
# package = "mamba-ssm"
# version = "2.3.1"
# variables = { MAMBA_SKIP_CUDA_BUILD = "TRUE", MAMBA_FORCE_BUILD = "TRUE" }
# ///
"""`generate(cg=True)`: decoding with the graphs of mamba_ssm.utils.generation.

The kernels of the package are not built. Its own reference of the scan takes their place for the
prompt; a step is PyTorch code of the package where its Triton kernel is not available.
"""

from unused import leave_out

KERNELS = "layer_norm", "layernorm_gated", "ssd_combined"
leave_out("selective_scan_cuda", *(f"mamba_ssm.ops.triton.{name}" for name in KERNELS))

import torch
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
from mamba_ssm.modules import mamba_simple
from mamba_ssm.ops.selective_scan_interface import selective_scan_ref

mamba_simple.selective_scan_fn = selective_scan_ref
torch.manual_seed(0)
config = MambaConfig(
    d_model=32,
    n_layer=2,
    vocab_size=64,
    rms_norm=False,
    fused_add_norm=False,
    residual_in_fp32=False,
)
model = MambaLMHeadModel(config, device="cuda").eval()
for length in (12, 10):
    prompt = torch.randint(64, (2, 4), device="cuda")
    graphed = model.generate(prompt, max_length=length, cg=True)
    eager = model.generate(prompt, max_length=length, cg=False)
    print(graphed[0].tolist())
    assert torch.equal(graphed, eager)

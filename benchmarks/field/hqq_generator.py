# /// script
# dependencies = [
#     "hqq==0.2.8.post1", "termcolor==3.3.0", "accelerate==1.14.0", "transformers==4.57.6",
#     "tokenizers==0.22.1", "huggingface-hub==0.36.2", "safetensors==0.8.0", "regex", "tqdm",
#     "requests", "urllib3", "charset-normalizer", "idna", "certifi", "hf-xet", "packaging",
#     "pyyaml", "filelock", "fsspec", "psutil", "numpy",
# ]
# [tool.field]
# package = "hqq"
# version = "0.2.8.post1"
# [[tool.field.true]]
# code = "capture-does-not-execute"
# file = "hqq/utils/generation_hf.py"
# function = "next_token_iterator"
# [[tool.field.true]]
# code = "input-freed-before-replay"
# file = "hqq/utils/generation_hf.py"
# function = "next_token_iterator"
# [[tool.field.meant]]
# code = "metadata-address-changed"
# file = "hqq/utils/generation_hf.py"
# function = "prefill"
# ///
"""`HFGenerator.enable_cuda_graph()`, and a prompt after it.

The call that captures returns `static_output`, which no replay has written: the token is 0. Each
`generate()` ends with `del self.cache_position`, which the graph goes on to read, and the next one
has another tensor. On a GPU the allocator may give it the same address, and then it works.
"""

import torch
from hqq.utils.generation_hf import HFGenerator
from transformers import BatchEncoding, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)


class Tokenizer:
    eos_token_id = -1
    pad_token = "."

    def __call__(self, texts, return_tensors):
        ids = torch.tensor([[ord(letter) % 64 for letter in text[:8]] for text in texts])
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def apply_chat_template(self, messages, **options):
        return messages[-1]["content"]

    def decode(self, ids):
        return ids.tolist()


config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config).cuda().eval()
generator = HFGenerator(model, Tokenizer(), max_new_tokens=8)
print(generator.generate("Who are you?", verbose=False)["output_text"])
generator.enable_cuda_graph()
print(generator.generate("Who are you?", verbose=False)["output_text"])

"""Models of other people's libraries as entry points: tiny, random weights, nothing downloaded.

    cgtool check benchmarks/model_zoo.py:bert

Each factory imports its own package. What `benchmarks/models.py` runs over is ``PACKAGES``: the
names of the factories by the package that they come from. Models are in training mode, with the
dropout that their configuration has, unless they are used for inference only.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

PACKAGES: dict[str, list[str]] = {
    "transformers": [],
    "timm": [],
    "torchvision": [],
    "torch_geometric": [],
}


def of(package):
    def note(factory):
        PACKAGES[package].append(factory.__name__)
        return factory

    return note


NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def torchvision_loads():
    """torchvision, which the others import too, also where its C library is for another PyTorch.

    Its import wants the schemas of two ops of that library; the models here call none of them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        return
    try:
        torch.ops.load_library(Path(spec.origin).parent / "_C.so")
    except OSError:
        torch.library.define("torchvision::nms", NMS)
        torch.library.define("torchvision::qnms", NMS)


torchvision_loads()

# --- transformers

VOCABULARY, BATCH, LENGTH = 128, 2, 16
BODY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SMALL = BODY | {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = SMALL | SPECIAL | {"num_key_value_heads": 2}


def tokens(device, length=LENGTH):
    return torch.randint(3, VOCABULARY, (BATCH, length), device=device)


def language_model(model, device):
    """Loss of a model that predicts the tokens it is given."""
    model = model.to(device).train()

    def loss(ids):
        return model(input_ids=ids, labels=ids).loss

    return loss, (tokens(device),)


def decoder(model, device):
    model.config.use_cache = False
    return language_model(model, device)


@of("transformers")
def bert(device):
    from transformers import BertConfig, BertForMaskedLM

    return language_model(BertForMaskedLM(BertConfig(**SMALL)), device)


@of("transformers")
def bert_padded(device):
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**SMALL)).to(device).eval()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64, device=device)
    mask[0, LENGTH // 2 :] = 0

    def encode(ids, mask):
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

    return encode, (tokens(device), mask)


@of("transformers")
def roberta(device):
    from transformers import RobertaConfig, RobertaForMaskedLM

    return language_model(RobertaForMaskedLM(RobertaConfig(**SMALL, pad_token_id=1)), device)


@of("transformers")
def distilbert(device):
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(vocab_size=VOCABULARY, dim=32, hidden_dim=64, n_layers=2, n_heads=4)
    return language_model(DistilBertForMaskedLM(config), device)


@of("transformers")
def deberta(device):
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    config = DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"])
    return language_model(DebertaV2ForMaskedLM(config), device)


@of("transformers")
def longformer(device):
    from transformers import LongformerConfig, LongformerForMaskedLM

    config = LongformerConfig(**SMALL, attention_window=8, pad_token_id=1)
    return language_model(LongformerForMaskedLM(config), device)


@of("transformers")
def gpt2(device):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return decoder(GPT2LMHeadModel(config), device)


@of("transformers")
def llama(device):
    from transformers import LlamaConfig, LlamaForCausalLM

    return decoder(LlamaForCausalLM(LlamaConfig(**DECODER)), device)


@of("transformers")
def mistral(device):
    from transformers import MistralConfig, MistralForCausalLM

    return decoder(MistralForCausalLM(MistralConfig(**DECODER, sliding_window=8)), device)


@of("transformers")
def qwen2(device):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return decoder(Qwen2ForCausalLM(Qwen2Config(**DECODER)), device)


@of("transformers")
def qwen3(device):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return decoder(Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=8)), device)


@of("transformers")
def gemma(device):
    from transformers import GemmaConfig, GemmaForCausalLM

    return decoder(GemmaForCausalLM(GemmaConfig(**DECODER, head_dim=8)), device)


@of("transformers")
def phi(device):
    from transformers import PhiConfig, PhiForCausalLM

    return decoder(PhiForCausalLM(PhiConfig(**DECODER)), device)


@of("transformers")
def mixtral(device):
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2)
    return decoder(MixtralForCausalLM(config), device)


@of("transformers")
def bloom(device):
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    return decoder(BloomForCausalLM(config), device)


@of("transformers")
def falcon(device):
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    return decoder(FalconForCausalLM(config), device)


@of("transformers")
def mamba(device):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)
    return decoder(MambaForCausalLM(config), device)


@of("transformers")
def t5(device):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return language_model(T5ForConditionalGeneration(config), device)


@of("transformers")
def bart(device):
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_position_embeddings=64, decoder_start_token_id=2, pad_token_id=1,
    )  # fmt: skip
    return language_model(BartForConditionalGeneration(config), device)


@of("transformers")
def whisper(device):
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=32, max_target_positions=64,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, **SPECIAL,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).to(device).train()

    def loss(features, ids):
        return model(input_features=features, labels=ids).loss

    return loss, (torch.randn(BATCH, 8, 64, device=device), tokens(device))


@of("transformers")
def vit(device):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**BODY, image_size=32, patch_size=8, num_labels=10)
    model = ViTForImageClassification(config).to(device).train()

    def loss(pixels, labels):
        return model(pixel_values=pixels, labels=labels).loss

    return loss, (images(device, 32), torch.randint(10, (BATCH,), device=device))


@of("transformers")
def clip(device):
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config=SMALL | SPECIAL,
        vision_config=BODY | {"image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = CLIPModel(config).to(device).train()

    def loss(ids, pixels):
        return model(input_ids=ids, pixel_values=pixels, return_loss=True).loss

    return loss, (tokens(device), images(device, 32))


@of("transformers")
def static_cache(device):
    """One step of decoding, as `generate(cache_implementation="static")` takes it.

    Each replay takes the next place of the cache, which is long enough for those that time it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    model = LlamaForCausalLM(LlamaConfig(**DECODER)).to(device).eval()
    cache = StaticCache(config=model.config, max_cache_len=8 * LENGTH)
    with torch.no_grad():
        model(input_ids=tokens(device, 4), past_key_values=cache, use_cache=True)

    def step(ids, position):
        with torch.no_grad():
            out = model(input_ids=ids, position_ids=position, past_key_values=cache, use_cache=True)
        return out.logits[:, -1].argmax(-1)

    return step, (tokens(device, 1), torch.full((BATCH, 1), 4, device=device))


@of("transformers")
def training_step(device):
    """A whole step: gradients to zero, loss, backward, clipping, AdamW."""
    loss, inputs = llama(device)
    (model,) = (cell.cell_contents for cell in loss.__closure__)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        value = loss(*inputs)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return value.detach()

    return step


# --- timm and torchvision


def images(device, size=64):
    return torch.randn(BATCH, 3, size, size, device=device)


def _timm(name, device, size=32, **options):
    import timm

    return timm.create_model(name, num_classes=10, **options).to(device), (images(device, size),)


@of("timm")
def timm_resnet18(device):
    return _timm("resnet18", device)


@of("timm")
def timm_vit(device):
    return _timm("vit_tiny_patch16_224", device, img_size=32, drop_path_rate=0.1)


@of("timm")
def timm_convnext(device):
    return _timm("convnext_atto", device, drop_path_rate=0.1)


@of("timm")
def timm_efficientnet(device):
    return _timm("efficientnet_b0", device, drop_path_rate=0.2)


@of("timm")
def timm_swin(device):
    return _timm(
        "swin_tiny_patch4_window7_224", device, 64, img_size=64, window_size=4, embed_dim=24,
        depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8),
    )  # fmt: skip


@of("timm")
def timm_mobilenet(device):
    return _timm("mobilenetv3_small_050", device)


@of("timm")
def timm_mixer(device):
    return _timm("mixer_s32_224", device, 64, img_size=64)


@of("timm")
def timm_regnet(device):
    return _timm("regnetx_002", device)


def _vision(name, device, size=32, **options):
    from torchvision.models import get_model

    model = get_model(name, weights=None, num_classes=10, **options)
    return model.to(device), (images(device, size),)


@of("torchvision")
def tv_resnet50(device):
    return _vision("resnet50", device)


@of("torchvision")
def tv_mobilenet(device):
    return _vision("mobilenet_v2", device)


@of("torchvision")
def tv_densenet(device):
    from torchvision.models import DenseNet

    # memory_efficient: every layer is checkpointed.
    model = DenseNet(8, (2, 2), 16, num_classes=10, memory_efficient=True)
    return model.to(device), (images(device, 32),)


@of("torchvision")
def tv_vit(device):
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64,
        num_classes=10,
    )  # fmt: skip
    return model.to(device), (images(device, 32),)


@of("torchvision")
def tv_swin(device):
    from torchvision.models import SwinTransformer

    model = SwinTransformer(
        patch_size=[4, 4], embed_dim=24, depths=[1, 1], num_heads=[2, 4], window_size=[4, 4],
        stochastic_depth_prob=0.2, num_classes=10,
    )  # fmt: skip
    return model.to(device), (images(device),)


@of("torchvision")
def tv_segmentation(device):
    model, inputs = _vision("lraspp_mobilenet_v3_large", device, weights_backbone=None)
    return (lambda pixels: model(pixels)["out"]), inputs


# --- torch_geometric

NODES, EDGES, FEATURES, CLASSES, GRAPHS = 40, 160, 16, 4, 4


def graph(device):
    x = torch.randn(NODES, FEATURES, device=device)
    edges = torch.randint(NODES, (2, EDGES), device=device)
    return x, edges


def _geometric(model, device):
    model = model.to(device).train()
    return (lambda x, edges: model(x, edges).log_softmax(-1)), graph(device)


@of("torch_geometric")
def gcn(device):
    from torch_geometric.nn import GCN

    return _geometric(GCN(FEATURES, 16, 2, CLASSES, dropout=0.5), device)


@of("torch_geometric")
def gcn_cached(device):
    """The normalized adjacency is computed in warm-up and kept."""
    from torch_geometric.nn import GCN

    return _geometric(GCN(FEATURES, 16, 2, CLASSES, cached=True), device)


@of("torch_geometric")
def gat(device):
    from torch_geometric.nn import GAT

    return _geometric(GAT(FEATURES, 16, 2, CLASSES, heads=2, dropout=0.5), device)


@of("torch_geometric")
def sage(device):
    from torch_geometric.nn import GraphSAGE

    return _geometric(GraphSAGE(FEATURES, 16, 2, CLASSES), device)


@of("torch_geometric")
def gin(device):
    from torch_geometric.nn import GIN

    return _geometric(GIN(FEATURES, 16, 2, CLASSES, norm="batch_norm"), device)


class Pooled(nn.Module):
    """Graph classification; how many graphs there are is said, or read from the batch vector."""

    def __init__(self, pool, graphs=None):
        super().__init__()
        from torch_geometric.nn import GraphConv

        self.convolution = GraphConv(FEATURES, 16)
        self.head = nn.Linear(16, CLASSES)
        self.pool = pool
        self.graphs = graphs

    def forward(self, x, edges, batch):
        x = self.convolution(x, edges).relu()
        return self.head(self.pool(x, batch, size=self.graphs))


def _pooled(graphs, device):
    from torch_geometric.nn import global_mean_pool

    batch = torch.arange(NODES, device=device) * GRAPHS // NODES
    return Pooled(global_mean_pool, graphs).to(device), (*graph(device), batch)


@of("torch_geometric")
def pooling(device):
    return _pooled(GRAPHS, device)


@of("torch_geometric")
def pooling_unsized(device):
    return _pooled(None, device)


class TopK(nn.Module):
    def __init__(self):
        super().__init__()
        from torch_geometric.nn import GraphConv, TopKPooling

        self.convolution = GraphConv(FEATURES, 16)
        self.pool = TopKPooling(16, ratio=0.5)

    def forward(self, x, edges):
        x = self.convolution(x, edges).relu()
        return self.pool(x, edges)[0]


@of("torch_geometric")
def topk_pooling(device):
    return TopK().to(device), graph(device)

"""Real models of transformers, timm and torchvision: their names, sizes and seeds.

Each is built from a configuration with random weights, so that nothing is downloaded. ``build``
gives a model in evaluation mode and the arguments of a call. Not here: the run of the models
(``models.py``).
"""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

LIBRARIES: Final = ("transformers", "timm", "torchvision")


@dataclass(frozen=True)
class Size:
    """The size of models whose size can be chosen.

    Attributes:
        layers, hidden, heads: those of a transformer, whose feed-forward part is four times as
            wide.
        words: the size of the vocabulary.
        length: the tokens of a text.
        image: the edge of an image in pixels.
        batch: the batch size of all inputs.
    """

    layers: int
    hidden: int
    heads: int
    words: int
    length: int
    image: int
    batch: int = 1

    @property
    def wide(self) -> int:
        """The width of a feed-forward part."""
        return 4 * self.hidden


SIZES: Final[Mapping[str, Size]] = {
    "probe": Size(layers=2, hidden=64, heads=4, words=96, length=16, image=64),
    "small": Size(layers=4, hidden=256, heads=8, words=1000, length=64, image=128),
    "full": Size(layers=12, hidden=768, heads=12, words=30_000, length=128, image=224),
}
"""The sizes by name: ``probe`` to find failures, ``full`` for times."""


@dataclass(frozen=True)
class Call:
    """A model and the arguments it is called with."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """One model of the list."""

    name: str
    library: str
    make: Callable[[Size], Call]

    def build(self, size: str | Size = "probe") -> Call:
        """The model and its arguments, the same each time."""
        _mend_torchvision()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            call = self.make(SIZES[size] if isinstance(size, str) else size)
            with torch.no_grad():
                for part in call.module.modules():
                    _unsettle(part)
                for weight in call.module.parameters():
                    # A last layer of zeros, or a branch that is scaled by 1e-6, would hide what
                    # comes before it.
                    if weight.ndim and bool((weight.abs() < 1e-3).all()):
                        weight.normal_(0.0, 0.05)
        return Call(call.module.eval().requires_grad_(False), call.args, call.kwargs)


def installed(library: str) -> bool:
    """Whether a library of models is installed."""
    return importlib.util.find_spec(library) is not None


def _mend_torchvision() -> None:
    """Declare the operators that torchvision looks up when it is imported. They are missing if it
    was built for another version of torch. timm and transformers import it, but no model here calls
    these operators."""
    if not installed("torchvision") or hasattr(torch.ops.torchvision, "nms"):
        return
    try:
        importlib.import_module("torchvision.extension")
    except RuntimeError:
        for name in ("nms", "qnms"):
            schema = f"torchvision::{name}"
            torch.library.define(schema, "(Tensor boxes, Tensor scores, float limit) -> Tensor")


def _unsettle(part: nn.Module) -> None:
    """Give a norm random statistics and scales, as after training; those of a new norm are 0 and
    1, so that an error in folding it wouldn't show."""
    if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.running_mean is not None:
        assert part.running_var is not None
        part.running_mean.normal_(0.0, 0.2)
        part.running_var.uniform_(0.5, 1.5)
    if isinstance(part, nn.BatchNorm2d | nn.LayerNorm) and part.weight is not None:
        part.weight.uniform_(0.5, 1.5)
        if part.bias is not None:
            part.bias.normal_(0.0, 0.1)


# -- transformers -------------------------------------------------------------------------------


def _transformers(kind: str, /, **config: Any) -> nn.Module:
    """``BertModel`` of a ``BertConfig``; ``Bert`` is a ``BertModel``."""
    library = importlib.import_module("transformers")
    name, _, of = kind.partition(":")
    settings = getattr(library, f"{name}Config")(**config)
    model: nn.Module = getattr(library, of or f"{name}Model")(settings)
    return model


def _sizes(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.words,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
    }


def _tokens(size: Size) -> torch.Tensor:
    return torch.randint(2, size.words, (size.batch, size.length))


def _mask(size: Size) -> torch.Tensor:
    """The attention mask of a batch of tokens, of which the last quarter is padding."""
    mask = torch.ones(size.batch, size.length, dtype=torch.int64)
    mask[:, size.length - size.length // 4 :] = 0
    return mask


def _pixels(size: Size) -> torch.Tensor:
    return torch.randn(size.batch, 3, size.image, size.image)


def _encoder(kind: str, **more: Any) -> Callable[[Size], Call]:
    """A text encoder, called with a padding mask as a tokenizer gives it."""

    def make(size: Size) -> Call:
        config = {
            **_sizes(size),
            "intermediate_size": size.wide,
            "max_position_embeddings": 2 * size.length,
            **more,
        }
        module = _transformers(kind, **config)
        return Call(module, (), {"input_ids": _tokens(size), "attention_mask": _mask(size)})

    return make


def _decoder(kind: str, **more: Any) -> Callable[[Size], Call]:
    """A language model, called on a prompt; it returns its KV cache if it does so by default."""

    def make(size: Size) -> Call:
        config = {
            **_sizes(size),
            "intermediate_size": size.wide,
            "max_position_embeddings": 2 * size.length,
            **{name: v(size) if callable(v) else v for name, v in more.items()},
        }
        return Call(_transformers(kind, **config), (), {"input_ids": _tokens(size)})

    return make


def _both(kind: str, config: Callable[[Size], dict[str, Any]]) -> Callable[[Size], Call]:
    """An encoder and decoder of texts."""

    def make(size: Size) -> Call:
        module = _transformers(kind, vocab_size=size.words, **config(size))
        half = _tokens(size)[:, : size.length // 2]
        return Call(module, (), {"input_ids": _tokens(size), "decoder_input_ids": half})

    return make


def _image(kind: str, config: Callable[[Size], dict[str, Any]]) -> Callable[[Size], Call]:
    return lambda size: Call(
        _transformers(kind, **config(size)), (), {"pixel_values": _pixels(size)}
    )


def _vit(size: Size) -> dict[str, Any]:
    sizes = {**_sizes(size), "intermediate_size": size.wide, "image_size": size.image}
    del sizes["vocab_size"]
    return {**sizes, "patch_size": 16}


def _swin(size: Size) -> dict[str, Any]:
    return {
        "image_size": size.image, "patch_size": 4, "embed_dim": size.hidden // 2,
        "depths": [2] * min(size.layers, 4), "num_heads": [2, 4, 8, 16][: min(size.layers, 4)],
        "window_size": 4,
    }  # fmt: skip


def _convnext(size: Size) -> dict[str, Any]:
    stages = min(size.layers, 4)
    return {
        "num_stages": stages, "depths": [2] * stages, "image_size": size.image,
        "hidden_sizes": [size.hidden << n for n in range(stages)],
    }  # fmt: skip


def _segformer(size: Size) -> dict[str, Any]:
    return {
        "depths": [1, 1, 1, 1], "hidden_sizes": [size.hidden // 2 << n for n in range(4)],
        "num_attention_heads": [1, 2, 4, 8], "decoder_hidden_size": size.hidden,
    }  # fmt: skip


def _detr(size: Size) -> dict[str, Any]:
    library = importlib.import_module("transformers")
    backbone = library.ResNetConfig(
        embedding_size=size.hidden // 2, hidden_sizes=[size.hidden, size.hidden * 2],
        depths=[1, 1], layer_type="basic", out_features=["stage2"],
    )  # fmt: skip
    return {
        "backbone_config": backbone, "use_timm_backbone": False, "backbone": None,
        "use_pretrained_backbone": False, "d_model": size.hidden, "num_queries": 10,
        "encoder_layers": size.layers, "decoder_layers": size.layers,
        "encoder_attention_heads": size.heads, "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.wide, "decoder_ffn_dim": size.wide,
    }  # fmt: skip


def _bart(size: Size) -> dict[str, Any]:
    return {
        "d_model": size.hidden, "max_position_embeddings": 2 * size.length,
        "encoder_layers": size.layers, "decoder_layers": size.layers,
        "encoder_attention_heads": size.heads, "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.wide, "decoder_ffn_dim": size.wide,
    }  # fmt: skip


def _t5(size: Size) -> dict[str, Any]:
    return {
        "d_model": size.hidden, "d_kv": size.hidden // size.heads, "d_ff": size.wide,
        "num_layers": size.layers, "num_heads": size.heads,
    }  # fmt: skip


def _clip(size: Size) -> Call:
    text = {**_sizes(size), "intermediate_size": size.wide, "max_position_embeddings": size.length,
            "eos_token_id": 1, "projection_dim": size.hidden}  # fmt: skip
    vision = {**_vit(size), "projection_dim": size.hidden}
    module = _transformers(
        "CLIP", text_config=text, vision_config=vision, projection_dim=size.hidden
    )
    inputs = {"input_ids": _tokens(size), "pixel_values": _pixels(size)}
    return Call(module, (), {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])})


def _whisper(size: Size) -> Call:
    settings = _bart(size)
    del settings["max_position_embeddings"]
    module = _transformers(
        "Whisper", vocab_size=size.words, num_mel_bins=16, max_source_positions=2 * size.length,
        max_target_positions=size.length, pad_token_id=0, bos_token_id=1, eos_token_id=1,
        decoder_start_token_id=1, **settings,
    )  # fmt: skip
    heard = torch.randn(size.batch, 16, 4 * size.length)
    return Call(module, (), {"input_features": heard, "decoder_input_ids": _tokens(size)[:, :8]})


def _wav2vec2(size: Size) -> Call:
    module = _transformers(
        "Wav2Vec2", **_sizes(size), intermediate_size=size.wide, conv_dim=[size.hidden // 2] * 3,
        conv_stride=[5, 4, 4], conv_kernel=[10, 4, 4], num_feat_extract_layers=3,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return Call(module, (), {"input_values": torch.randn(size.batch, 100 * size.length)})


def _mamba(size: Size) -> Call:
    module = _transformers(
        "Mamba", vocab_size=size.words, hidden_size=size.hidden, state_size=8,
        num_hidden_layers=size.layers, use_cache=False,
    )  # fmt: skip
    return Call(module, (), {"input_ids": _tokens(size)})


def _step(size: Size) -> Call:
    """One step of generation: one token, with the keys and values of the tokens before it."""
    heads = {"num_key_value_heads": max(1, size.heads // 2)}
    module = _transformers(
        "Llama:LlamaForCausalLM", **_sizes(size), intermediate_size=size.wide, **heads,
        max_position_embeddings=2 * size.length,
    )  # fmt: skip
    with torch.no_grad():
        first = module.eval()(_tokens(size), use_cache=True)
    return Call(module, (), {"input_ids": _tokens(size)[:, :1], "past_key_values": first[1]})


# -- timm and torchvision -----------------------------------------------------------------------


def _timm(name: str, **more: Any) -> Callable[[Size], Call]:
    """A model of timm by its name, with the widths that it has there."""

    def make(size: Size) -> Call:
        library = importlib.import_module("timm")
        settings = {n: v(size) if callable(v) else v for n, v in more.items()}
        return Call(library.create_model(name, pretrained=False, **settings), (_pixels(size),))

    return make


def _torchvision(name: str, **more: Any) -> Callable[[Size], Call]:
    def make(size: Size) -> Call:
        library = importlib.import_module("torchvision.models")
        return Call(getattr(library, name)(weights=None, **more), (_pixels(size),))

    return make


def _edge(size: Size) -> int:
    return size.image


def _grouped(size: Size) -> int:
    return max(1, size.heads // 2)


def _rows() -> list[Model]:
    texts = {
        "bert": _encoder("Bert"),
        "roberta": _encoder("Roberta", max_position_embeddings=260),
        "distilbert": lambda s: Call(
            _transformers(
                "DistilBert", vocab_size=s.words, dim=s.hidden, n_layers=s.layers,
                n_heads=s.heads, hidden_dim=s.wide,
            ),
            (),
            {"input_ids": _tokens(s), "attention_mask": _mask(s)},
        ),
        "albert": _encoder("Albert", embedding_size=32),
        "electra": _encoder("Electra", embedding_size=32),
        "mpnet": _encoder("MPNet", max_position_embeddings=260),
        "deberta_v2": _encoder(
            "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"],
            position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm",
        ),
        "fnet": lambda s: Call(
            _transformers(
                "FNet", vocab_size=s.words, hidden_size=s.hidden, num_hidden_layers=s.layers,
                intermediate_size=s.wide, max_position_embeddings=2 * s.length,
            ),
            (),
            {"input_ids": _tokens(s)},
        ),
        "longformer": _encoder("Longformer", attention_window=8),
        "bigbird": _encoder("BigBird", attention_type="original_full"),
        "gpt2": _decoder("GPT2"),
        "gpt_neox": _decoder("GPTNeoX"),
        "opt": lambda s: Call(
            _transformers(
                "OPT", **_sizes(s), ffn_dim=s.wide, word_embed_proj_dim=s.hidden,
                max_position_embeddings=2 * s.length,
            ),
            (),
            {"input_ids": _tokens(s), "attention_mask": torch.ones_like(_tokens(s))},
        ),
        "llama": _decoder("Llama:LlamaForCausalLM", num_key_value_heads=_grouped),
        "llama_step": _step,
        "mistral": _decoder("Mistral", num_key_value_heads=_grouped, sliding_window=8),
        "qwen2": _decoder("Qwen2", num_key_value_heads=_grouped),
        "qwen3": _decoder("Qwen3", num_key_value_heads=_grouped, head_dim=16),
        "gemma": _decoder("Gemma", num_key_value_heads=1, head_dim=16),
        "phi": _decoder("Phi"),
        "falcon": _decoder("Falcon", alibi=False),
        "bloom": lambda s: Call(_transformers("Bloom", **_sizes(s)), (), {"input_ids": _tokens(s)}),
        "t5": _both("T5", _t5),
        "bart": _both("Bart", _bart),
        "mamba": _mamba,
    }  # fmt: skip
    images = {
        "vit": _image("ViT", _vit),
        "deit": _image("DeiT", _vit),
        "swin": _image("Swin", _swin),
        "beit": _image("Beit", lambda s: {**_vit(s), "use_relative_position_bias": True}),
        "convnext": _image("ConvNext", _convnext),
        "segformer": _image("Segformer:SegformerForSemanticSegmentation", _segformer),
        "detr": _image("Detr:DetrForObjectDetection", _detr),
        "clip": _clip,
        "whisper": _whisper,
        "wav2vec2": _wav2vec2,
    }
    pictures = {
        "resnet10t": _timm("resnet10t"),
        "resnext26ts": _timm("resnext26ts"),
        "efficientnet_b0": _timm("efficientnet_b0"),
        "mobilenetv3_small": _timm("mobilenetv3_small_050"),
        "regnetx_002": _timm("regnetx_002"),
        "mixer": _timm("mixer_s32_224", img_size=_edge, num_classes=10),
        "ghostnet": _timm("ghostnet_050"),
        "rexnet": _timm("rexnet_100"),
    }
    seen = {
        "densenet121": _torchvision("densenet121"),
        "shufflenet_v2": _torchvision("shufflenet_v2_x0_5"),
        "squeezenet": _torchvision("squeezenet1_1"),
    }
    return [
        Model(name, library, make)
        for library, makes in (
            ("transformers", {**texts, **images}), ("timm", pictures), ("torchvision", seen)
        )
        for name, make in makes.items()
    ]  # fmt: skip


MODELS: Final[Mapping[str, Model]] = {model.name: model for model in _rows()}

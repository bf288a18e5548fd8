"""The networks of the census: tiny, with random weights, from transformers, timm, torchvision and by hand.

`ARCHITECTURES` maps a name, FAMILY/NAME, to a function without arguments. The function returns (module, inputs): a
module in evaluation mode, and a dict of example tensors in the order of the module's arguments. The first axis of each
tensor is the sample. A function may fail if a package is missing or too old; the generator reports it and continues.
"""
import torch
from torch import nn
from torch.nn import functional as F

BATCH = 3
LENGTH = 8
VOCABULARY = 64

ARCHITECTURES = {}


def architecture(name):
    def add(build):
        ARCHITECTURES[name] = build
        return build
    return add


class FirstOutput(nn.Module):
    """Calls a model of transformers by keyword and returns its first tensor."""

    def __init__(self, model, names, **fixed):
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *values):
        out = self.model(**dict(zip(self.names, values)), **self.fixed)
        return out[0] if isinstance(out, tuple) else out.to_tuple()[0]


def tokens(rows=BATCH, length=LENGTH, top=VOCABULARY):
    return torch.randint(3, top, (rows, length))


def mask():
    out = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    out[1, LENGTH - 2:] = 0
    return out


def huggingface(kind, auto, inputs, fixed=None, **config):
    """Returns a function that builds a transformers model from its configuration's name and values that make it
    tiny."""
    def build():
        import transformers
        made = getattr(transformers, kind + "Config")(**config)
        model = getattr(transformers, auto)._from_config(made) if hasattr(
            getattr(transformers, auto), "_from_config") else getattr(transformers, auto)(made)
        made_inputs = inputs()
        return FirstOutput(model.eval(), list(made_inputs), **(fixed or {"return_dict": False})), made_inputs
    return build


SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
             max_position_embeddings=64)


def masked_text():
    return {"input_ids": tokens(), "attention_mask": mask()}


def encoders():
    table = {
        "bert": ("Bert", {}), "roberta": ("Roberta", dict(pad_token_id=1)), "camembert": ("Camembert", dict(pad_token_id=1)),
        "xlm_roberta": ("XLMRoberta", dict(pad_token_id=1)), "electra": ("Electra", dict(embedding_size=16)),
        "albert": ("Albert", dict(embedding_size=16)), "mpnet": ("MPNet", dict(pad_token_id=1)),
        "ernie": ("Ernie", {}), "megatron_bert": ("MegatronBert", {}), "rembert": ("RemBert", dict(
            input_embedding_size=16, output_embedding_size=16)),
        "roformer": ("RoFormer", dict(embedding_size=32)), "data2vec_text": ("Data2VecText", dict(pad_token_id=1)),
        "nystromformer": ("Nystromformer", dict(num_landmarks=4, segment_means_seq_len=8)),
        "convbert": ("ConvBert", dict(embedding_size=32)), "deberta": ("Deberta", dict(
            relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16)),
        "deberta_v2": ("DebertaV2", dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8,
                                         max_relative_positions=16, share_att_key=True, norm_rel_ebd="layer_norm")),
        "squeezebert": ("SqueezeBert", dict(embedding_size=32)),
        "modernbert": ("ModernBert", dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)),
        "mobilebert": ("MobileBert", dict(embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16)),
        "esm": ("Esm", dict(pad_token_id=1, mask_token_id=2, position_embedding_type="rotary")),
    }
    for name, (kind, more) in table.items():
        ARCHITECTURES["encoder/" + name] = huggingface(
            kind, kind + "ForSequenceClassification", masked_text, **{**SMALL, "num_labels": 5, **more})
    ARCHITECTURES["encoder/distilbert"] = huggingface(
        "DistilBert", "DistilBertForSequenceClassification", masked_text, vocab_size=VOCABULARY, dim=32, n_layers=2,
        n_heads=4, hidden_dim=64, max_position_embeddings=64, num_labels=5)
    ARCHITECTURES["encoder/bert_tokens"] = huggingface(
        "Bert", "BertForTokenClassification", masked_text, **{**SMALL, "num_labels": 5})
    ARCHITECTURES["encoder/bert_mlm"] = huggingface("Bert", "BertForMaskedLM", masked_text, **SMALL)
    ARCHITECTURES["encoder/fnet"] = huggingface(
        "FNet", "FNetForSequenceClassification", lambda: {"input_ids": tokens()}, **{**SMALL, "num_labels": 5})
    ARCHITECTURES["encoder/xlnet"] = huggingface(
        "XLNet", "XLNetForSequenceClassification", masked_text, vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4,
        d_inner=64, num_labels=5)
    ARCHITECTURES["encoder/funnel"] = huggingface(
        "Funnel", "FunnelForSequenceClassification", masked_text, vocab_size=VOCABULARY, block_sizes=[1, 1], d_model=32,
        n_head=4, d_head=8, d_inner=64, num_labels=5)


def decoders():
    gqa = dict(num_key_value_heads=2)
    head = dict(head_dim=8)
    table = {
        "llama": ("Llama", gqa), "mistral": ("Mistral", gqa), "qwen2": ("Qwen2", gqa), "qwen3": ("Qwen3", {**gqa, **head}),
        "gemma": ("Gemma", {**gqa, **head}), "gemma2": ("Gemma2", {**gqa, **head}), "gemma3": ("Gemma3Text", {**gqa, **head}),
        "phi": ("Phi", gqa), "phi3": ("Phi3", {**gqa, "pad_token_id": 0}), "falcon": ("Falcon", dict(
            num_kv_heads=2, new_decoder_architecture=True, ffn_hidden_size=64)),
        "stablelm": ("StableLm", gqa), "olmo": ("Olmo", gqa), "olmo2": ("Olmo2", gqa), "cohere": ("Cohere", gqa),
        "granite": ("Granite", gqa), "starcoder2": ("Starcoder2", gqa), "gpt_neox": ("GPTNeoX", {}),
        "persimmon": ("Persimmon", {}), "nemotron": ("Nemotron", gqa), "glm": ("Glm", {**gqa, **head, "pad_token_id": 0}),
        "smollm3": ("SmolLM3", {**gqa, "pad_token_id": 0}), "helium": ("Helium", {**gqa, **head}),
        "mixtral": ("Mixtral", {**gqa, "num_local_experts": 4}), "qwen2_moe": ("Qwen2Moe", {
            **gqa, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
            "num_experts_per_tok": 2}),
        "ernie4_5": ("Ernie4_5", {**gqa, **head}), "exaone4": ("Exaone4", gqa), "seed_oss": ("SeedOss", {**gqa, **head}),
    }
    for name, (kind, more) in table.items():
        auto = kind.removesuffix("Text") + "ForCausalLM"
        ARCHITECTURES["decoder/" + name] = huggingface(
            kind, auto, masked_text, {"use_cache": False, "return_dict": False},
            **{**SMALL, "attn_implementation": "eager", **more})
    wide = {
        "gpt2": ("GPT2", "GPT2LMHeadModel", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64)),
        "openai_gpt": ("OpenAIGPT", "OpenAIGPTLMHeadModel", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64)),
        "ctrl": ("CTRL", "CTRLLMHeadModel", dict(n_embd=32, n_layer=2, n_head=4, dff=64, n_positions=64)),
        "gptj": ("GPTJ", "GPTJForCausalLM", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)),
        "codegen": ("CodeGen", "CodeGenForCausalLM", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)),
        "gpt_neo": ("GPTNeo", "GPTNeoForCausalLM", dict(hidden_size=32, num_layers=2, num_heads=4, window_size=4,
                    max_position_embeddings=64, attention_types=[[["global", "local"], 1]])),
        "gpt_bigcode": ("GPTBigCode", "GPTBigCodeForCausalLM", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64)),
        "opt": ("OPT", "OPTForCausalLM", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                max_position_embeddings=64, word_embed_proj_dim=32)),
        "bloom": ("Bloom", "BloomForCausalLM", dict(hidden_size=32, n_layer=2, n_head=4)),
        "mpt": ("Mpt", "MptForCausalLM", dict(d_model=32, n_layers=2, n_heads=4, max_seq_len=64, expansion_ratio=2)),
        "xglm": ("XGLM", "XGLMForCausalLM", dict(d_model=32, num_layers=2, attention_heads=4, ffn_dim=64,
                 max_position_embeddings=64)),
        "biogpt": ("BioGpt", "BioGptForCausalLM", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                   intermediate_size=64, max_position_embeddings=64)),
        "mamba": ("Mamba", "MambaForCausalLM", dict(hidden_size=32, num_hidden_layers=2, state_size=4)),
        "mamba2": ("Mamba2", "Mamba2ForCausalLM", dict(hidden_size=32, num_hidden_layers=2, state_size=4, num_heads=8,
                   head_dim=8, n_groups=1, chunk_size=4)),
        "rwkv": ("Rwkv", "RwkvForCausalLM", dict(hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)),
        "recurrent_gemma": ("RecurrentGemma", "RecurrentGemmaForCausalLM", dict(hidden_size=32, num_hidden_layers=3,
                            num_attention_heads=4, intermediate_size=64, lru_width=32)),
    }
    for name, (kind, auto, more) in wide.items():
        ARCHITECTURES["decoder/" + name] = huggingface(
            kind, auto, lambda: {"input_ids": tokens()}, {"use_cache": False, "return_dict": False},
            vocab_size=VOCABULARY, **more)


def translators():
    both = dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64)
    t5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    table = {
        "t5": ("T5", "T5ForConditionalGeneration", t5),
        "mt5": ("MT5", "MT5ForConditionalGeneration", {**t5, "feed_forward_proj": "gated-gelu"}),
        "bart": ("Bart", "BartForConditionalGeneration", both), "mbart": ("MBart", "MBartForConditionalGeneration", both),
        "pegasus": ("Pegasus", "PegasusForConditionalGeneration", both),
        "marian": ("Marian", "MarianMTModel", {**both, "pad_token_id": 1}),
        "m2m_100": ("M2M100", "M2M100ForConditionalGeneration", both),
        "blenderbot": ("Blenderbot", "BlenderbotForConditionalGeneration", both),
        "plbart": ("PLBart", "PLBartForConditionalGeneration", both),
        "switch_transformers": ("SwitchTransformers", "SwitchTransformersForConditionalGeneration",
                                {**t5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}),
    }
    for name, (kind, auto, more) in table.items():
        ARCHITECTURES["seq2seq/" + name] = huggingface(
            kind, auto, lambda: {"input_ids": tokens(), "decoder_input_ids": tokens(length=LENGTH - 2)},
            {"use_cache": False, "return_dict": False}, **more)


def pictures(side=32, channels=3):
    return lambda: {"pixel_values": torch.randn(BATCH, channels, side, side)}


def vision():
    vit = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
               num_labels=5)
    table = {
        "vit": ("ViT", "ViTForImageClassification", vit, 32), "deit": ("DeiT", "DeiTForImageClassification", vit, 32),
        "vit_msn": ("ViTMSN", "ViTMSNForImageClassification", vit, 32),
        "dinov2": ("Dinov2", "Dinov2ForImageClassification", vit, 32),
        "beit": ("Beit", "BeitForImageClassification", {**vit, "use_relative_position_bias": True}, 32),
        "data2vec_vision": ("Data2VecVision", "Data2VecVisionForImageClassification",
                            {**vit, "use_relative_position_bias": True}, 32),
        "swin": ("Swin", "SwinForImageClassification", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
                 image_size=32, patch_size=4, num_labels=5), 32),
        "swinv2": ("Swinv2", "Swinv2ForImageClassification", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4],
                   window_size=4, image_size=32, patch_size=4, num_labels=5), 32),
        "convnext": ("ConvNext", "ConvNextForImageClassification", dict(hidden_sizes=[16, 24], depths=[1, 1], num_stages=2,
                     num_labels=5), 32),
        "convnextv2": ("ConvNextV2", "ConvNextV2ForImageClassification", dict(hidden_sizes=[16, 24], depths=[1, 1],
                       num_stages=2, num_labels=5), 32),
        "resnet": ("ResNet", "ResNetForImageClassification", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
                   layer_type="basic", num_labels=5), 32),
        "mobilenet_v1": ("MobileNetV1", "MobileNetV1ForImageClassification", dict(depth_multiplier=0.125, min_depth=8,
                         image_size=64, num_labels=5), 64),
        "mobilenet_v2": ("MobileNetV2", "MobileNetV2ForImageClassification", dict(depth_multiplier=0.125, min_depth=8,
                         image_size=64, num_labels=5), 64),
        "segformer": ("Segformer", "SegformerForImageClassification", dict(num_encoder_blocks=2, depths=[1, 1],
                      sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2],
                      num_attention_heads=[2, 4], mlp_ratios=[2, 2], num_labels=5), 32),
        "segformer_dense": ("Segformer", "SegformerForSemanticSegmentation", dict(num_encoder_blocks=2, depths=[1, 1],
                            sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2],
                            num_attention_heads=[2, 4], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=5), 32),
        "poolformer": ("PoolFormer", "PoolFormerForImageClassification", dict(depths=[1, 1], hidden_sizes=[16, 32],
                       num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], num_labels=5), 32),
        "pvt": ("Pvt", "PvtForImageClassification", dict(image_size=32, num_encoder_blocks=2, depths=[1, 1],
                sequence_reduction_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[4, 2], strides=[4, 2],
                num_attention_heads=[2, 4], mlp_ratios=[2, 2], num_labels=5), 32),
        "regnet": ("RegNet", "RegNetForImageClassification", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
                   groups_width=8, num_labels=5), 32),
        "focalnet": ("FocalNet", "FocalNetForImageClassification", dict(image_size=32, patch_size=4, embed_dim=16,
                     depths=[1, 1], hidden_sizes=[16, 32], focal_levels=[2, 2], focal_windows=[3, 3], num_labels=5), 32),
        "mobilevit": ("MobileViT", "MobileViTForImageClassification", dict(image_size=64, hidden_sizes=[16, 24, 32],
                      neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64], num_attention_heads=2, num_labels=5), 64),
        "levit": ("Levit", "LevitForImageClassification", dict(image_size=64, hidden_sizes=[16, 24, 32],
                  num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8], num_labels=5,
                  down_ops=[["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]]), 64),
        "bit": ("Bit", "BitForImageClassification", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
                num_groups=4, num_labels=5), 32),
        "dpt": ("DPT", "DPTForDepthEstimation", dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                intermediate_size=64, image_size=32, patch_size=8, backbone_out_indices=[0, 1, 2, 3],
                neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, is_hybrid=False), 32),
        "hiera": ("Hiera", "HieraForImageClassification", dict(embed_dim=16, image_size=[32, 32], patch_size=[7, 7],
                  patch_stride=[4, 4], patch_padding=[3, 3], depths=[1, 1], num_heads=[1, 2], query_stride=[2, 2],
                  num_query_pool=1, masked_unit_size=[4, 4], masked_unit_attention=[True, False], num_labels=5), 32),
    }
    for name, (kind, auto, more, side) in table.items():
        ARCHITECTURES["vision/" + name] = huggingface(kind, auto, pictures(side), **more)


def audio():
    wave = dict(vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2,
                num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, feat_extract_norm="group")

    def sound():
        return {"input_values": torch.randn(BATCH, 400)}
    for name, kind, auto in (("wav2vec2", "Wav2Vec2", "Wav2Vec2ForCTC"), ("hubert", "Hubert", "HubertForCTC"),
                             ("unispeech", "UniSpeech", "UniSpeechForCTC"), ("wavlm", "WavLM", "WavLMForCTC"),
                             ("data2vec_audio", "Data2VecAudio", "Data2VecAudioForCTC")):
        ARCHITECTURES["audio/" + name] = huggingface(kind, auto, sound, **wave)
    ARCHITECTURES["audio/whisper"] = huggingface(
        "Whisper", "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(BATCH, 16, 32), "decoder_input_ids": tokens(length=6)},
        {"use_cache": False, "return_dict": False}, vocab_size=VOCABULARY, num_mel_bins=16, d_model=32, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_source_positions=16, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1)
    ARCHITECTURES["audio/ast"] = huggingface(
        "AST", "ASTForAudioClassification", lambda: {"input_values": torch.randn(BATCH, 32, 16)}, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, patch_size=8, frequency_stride=8, time_stride=8,
        max_length=32, num_mel_bins=16, num_labels=5)
    ARCHITECTURES["audio/speech_to_text"] = huggingface(
        "Speech2Text", "Speech2TextForConditionalGeneration",
        lambda: {"input_features": torch.randn(BATCH, 32, 16), "decoder_input_ids": tokens(length=6)},
        {"use_cache": False, "return_dict": False}, vocab_size=VOCABULARY, input_feat_per_channel=16, input_channels=1,
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, conv_channels=32, max_source_positions=64, max_target_positions=32)


def pairs():
    text = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                max_position_embeddings=16, eos_token_id=2, bos_token_id=1, pad_token_id=0)
    picture = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
                   patch_size=8)

    def inputs():
        return {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, 32, 32), "attention_mask": mask()}
    for name, kind in (("clip", "CLIP"), ("chinese_clip", "ChineseCLIP"), ("siglip", "Siglip"), ("clipseg", "CLIPSeg")):
        auto = "CLIPSegForImageSegmentation" if name == "clipseg" else kind + "Model"
        ARCHITECTURES["pair/" + name] = huggingface(
            kind, auto, inputs, text_config=text, vision_config=picture, projection_dim=16, extract_layers=[0, 1],
            reduce_dim=16, conditional_layer=0, decoder_num_attention_heads=2, decoder_intermediate_size=32)
    ARCHITECTURES["pair/clip_vision"] = huggingface(
        "CLIPVision", "CLIPVisionModelWithProjection", pictures(32), projection_dim=16, **picture)
    ARCHITECTURES["pair/clip_text"] = huggingface(
        "CLIPText", "CLIPTextModelWithProjection", masked_text, projection_dim=16, **text)


def timm_models():
    def build(name, side, **more):
        def make():
            import timm
            return timm.create_model(name, pretrained=False, num_classes=5, **more).eval(), {
                "image": torch.randn(BATCH, 3, side, side)}
        return make
    for name in ("test_byobnet", "test_convnext", "test_convnext2", "test_efficientnet", "test_efficientnet_gn",
                 "test_efficientnet_evos", "test_mambaout", "test_nfnet", "test_resnet", "test_vit", "test_vit4"):
        side = 96 if "vit" not in name else 160
        ARCHITECTURES["timm/" + name.removeprefix("test_")] = build(name, side)
    for name, more in (("lcnet_035", {}), ("tinynet_e", {}), ("mobilenetv3_small_050", {}), ("ghostnet_050", {}),
                       ("mobilevit_xxs", {}), ("edgenext_xx_small", {}), ("efficientvit_b0", {}), ("repvgg_a0", dict(
                           block_args=None)), ("mixer_s32_224", dict(img_size=32, patch_size=8, embed_dim=32, num_blocks=2)),
                       ("gmlp_ti16_224", dict(img_size=32, patch_size=8, embed_dim=32, num_blocks=2)),
                       ("resmlp_12_224", dict(img_size=32, patch_size=8, embed_dim=32, num_blocks=2)),
                       ("cait_xxs24_224", dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)),
                       ("xcit_nano_12_p16_224", dict(img_size=32, patch_size=16, embed_dim=32, depth=2, num_heads=4)),
                       ("eva02_tiny_patch14_224", dict(img_size=28, embed_dim=32, depth=2, num_heads=4)),
                       ("crossvit_9_240", dict(img_size=96, embed_dim=(16, 32), depth=((1, 1, 0),), num_heads=(2, 2))),
                       ("convmixer_768_32", dict(dim=32, depth=2)), ("pit_ti_224", dict(
                           img_size=64, base_dims=[16, 16, 16], depth=[1, 1, 1], heads=[1, 2, 2]))):
        side = more.get("img_size", 64)
        ARCHITECTURES["timm/" + name] = build(name, side, **more)


def torchvision_models():
    def of(make, side=64):
        return lambda: (make().eval(), {"image": torch.randn(BATCH, 3, side, side)})

    @architecture("torchvision/squeezenet")
    def _():
        import torchvision.models as m
        return of(lambda: m.squeezenet1_1(num_classes=5))()

    @architecture("torchvision/shufflenet")
    def _():
        import torchvision.models as m
        return of(lambda: m.ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, 64], num_classes=5))()

    @architecture("torchvision/mobilenet_v2")
    def _():
        import torchvision.models as m
        return of(lambda: m.mobilenet_v2(width_mult=0.25, num_classes=5))()

    @architecture("torchvision/mnasnet")
    def _():
        import torchvision.models as m
        return of(lambda: m.MNASNet(0.2, num_classes=5))()

    @architecture("torchvision/densenet")
    def _():
        import torchvision.models as m
        return of(lambda: m.DenseNet(8, (2, 2), 16, num_classes=5))()

    @architecture("torchvision/vgg")
    def _():
        import torchvision.models.vgg as v
        return of(lambda: nn.Sequential(v.make_layers([8, "M", 16, "M", 16, "M"], batch_norm=True), nn.Flatten(),
                                        nn.Linear(16 * 16, 5)), 32)()

    @architecture("torchvision/vision_transformer")
    def _():
        import torchvision.models as m
        return of(lambda: m.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5), 32)()

    @architecture("torchvision/swin_v2")
    def _():
        import torchvision.models as m
        from torchvision.models.swin_transformer import SwinTransformerBlockV2, PatchMergingV2
        return of(lambda: m.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5,
                  block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2), 32)()

    @architecture("torchvision/maxvit")
    def _():
        import torchvision.models as m
        return of(lambda: m.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=5), 32)()

    @architecture("torchvision/googlenet_block")
    def _():
        from torchvision.models.googlenet import Inception
        return of(lambda: nn.Sequential(Inception(3, 4, 4, 8, 2, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                        nn.Linear(20, 5)), 32)()

    @architecture("torchvision/r3d")
    def _():
        from torchvision.models.video.resnet import BasicBlock, Conv3DSimple
        class Video(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Sequential(nn.Conv3d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm3d(8), nn.ReLU())
                self.block = BasicBlock(8, 8, Conv3DSimple)
                self.head = nn.Linear(8, 5)
            def forward(self, video):
                return self.head(self.block(self.stem(video)).mean((2, 3, 4)))
        return Video().eval(), {"video": torch.randn(BATCH, 3, 4, 16, 16)}


for fill in (encoders, decoders, translators, vision, audio, pairs, timm_models, torchvision_models):
    fill()

from networks import add_networks  # noqa: E402

add_networks(ARCHITECTURES)

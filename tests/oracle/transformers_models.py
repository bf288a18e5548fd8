"""Small transformers models with random weights, for make_cases.py. Each has a name, a module that maps the columns in
order to logits, the columns, the labels' classes and axes. Each has one layer, so the files stay small.
"""
import torch
import transformers as hf
from torch import nn

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
SPEECH = {"num_mel_bins": 16, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
          "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": 10,
          "max_target_positions": 16}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Wrapped(nn.Module):
    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *columns):
        return self.call(self.model, *columns).logits


def whisper():
    """Speech: convolutions over a spectrogram, encoder, decoder with cross attention, tied embedding."""
    config = hf.WhisperConfig(vocab_size=64, decoder_start_token_id=1, **SPEECH, **TOKENS)
    model = hf.WhisperForConditionalGeneration._from_config(config, attn_implementation="eager")
    return Wrapped(model, lambda m, sound, ids: m(input_features=sound, decoder_input_ids=ids, use_cache=False,
                                                  decoder_attention_mask=torch.ones_like(ids)))


def t5():
    """Encoder and decoder with relative positions, a mask, an embedding used three times."""
    config = hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4,
                         relative_attention_num_buckets=8, relative_attention_max_distance=16, tie_word_embeddings=True,
                         decoder_start_token_id=0)
    return Wrapped(hf.T5ForConditionalGeneration(config), lambda m, ids, mask, to: m(
        input_ids=ids, attention_mask=mask, decoder_input_ids=to, use_cache=False))


def mixtral():
    """Mixture of experts, rotary embedding, grouped heads."""
    config = hf.MixtralConfig(vocab_size=64, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **SIZES,
                              **TOKENS)
    model = hf.MixtralForCausalLM._from_config(config, attn_implementation="sdpa", experts_implementation="batched_mm")
    return Wrapped(model, lambda m, ids: m(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False))


def mamba():
    """State space."""
    config = hf.MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1, use_mambapy=False)
    return Wrapped(hf.MambaForCausalLM(config), lambda m, ids: m(input_ids=ids, use_cache=False))


def columns(samples):
    """Returns functions that make each model's columns."""
    tokens = lambda length: torch.randint(3, 64, (samples, length))
    return {
        "whisper": lambda: {"sound": torch.randn(samples, 16, 20), "ids": tokens(7)},
        "t5": lambda: {"ids": tokens(9), "mask": (torch.arange(9)[None] < torch.randint(5, 10, (samples, 1))).long(),
                       "to": tokens(7)},
        "mixtral": lambda: {"ids": tokens(10)},
        "mamba": lambda: {"ids": tokens(6)},
    }

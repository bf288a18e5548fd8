"""Expert layers that select their tokens by data (torch.where, masks), for make_cases.py: exporters write them as
NonZero, Gather, Scatter. The last expert of the small models is never selected, so an expert without rows is covered
too.
"""
import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F


class PickedExperts(nn.Module):
    """One expert per token: index_add of the rows that torch.where finds."""

    def __init__(self, width=16, experts=4, classes=20):
        super().__init__()
        self.e, self.gate = nn.Embedding(30, width), nn.Linear(width, experts)
        self.gate.bias.data[-1] = -9
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)) for _ in range(experts))
        self.n, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, ids):
        x = self.e(ids)
        rows = x.reshape(-1, x.shape[-1])
        mixed = self.mix(rows, self.gate(rows).softmax(-1))
        return self.head(self.n((rows + mixed).reshape(x.shape)))

    def mix(self, x, p):
        weight, chosen = p.max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            at = torch.where(chosen == i)[0]
            y = y.index_add(0, at, expert(x[at]) * weight[at, None])
        return y


class MaskedExperts(PickedExperts):
    """One expert per token: a mask reads and writes its rows."""

    def mix(self, x, p):
        weight, chosen = p.max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = chosen == i
            y[mask] = expert(x[mask])
        return y * weight[:, None]


class TwoExperts(PickedExperts):
    """Two experts per token, in the form of Mixtral's first code."""

    def mix(self, x, p):
        weight, chosen = p.topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        masks = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            which, at = torch.where(masks[i])
            rows = x[None, at].reshape(-1, x.shape[-1])
            y.index_add_(0, at, expert(rows) * weight[at, which, None])
        return y


class Switch(nn.Module):
    """Switch Transformers: encoder and decoder, a sparse layer in each."""

    def __init__(self):
        super().__init__()
        self.m = hf.SwitchTransformersForConditionalGeneration(hf.SwitchTransformersConfig(
            vocab_size=30, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=4, num_experts=3,
            num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, dropout_rate=0.0, router_jitter_noise=0.0,
            decoder_start_token_id=0, expert_capacity=64, relative_attention_num_buckets=8))

    def forward(self, ids):
        return self.m(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits

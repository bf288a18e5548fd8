"""The peer of bench/bert_vs_pytorch.sh: BERT-mini (4 layers of 256, vocabulary 8192, 128 tokens) in PyTorch eager.

    pytorch_bert.py --export FILE     writes the model as ONNX, weights random
    pytorch_bert.py                   prints one JSON line: the median training step in milliseconds, one CPU thread

Masked-language-model cross entropy over all positions, AdamW, float32, batch 8. Needs torch, transformers, onnxscript.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM

VOCABULARY, TOKENS = 8192, 128


class Logits(torch.nn.Module):
    """Logits flattened to [batch * tokens, vocabulary]."""

    def __init__(self):
        super().__init__()
        self.m = BertForMaskedLM(BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            vocab_size=VOCABULARY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

    def forward(self, ids):
        return self.m(input_ids=ids).logits.flatten(0, 1)


def export(path):
    torch.onnx.export(Logits().eval(), (torch.zeros(2, TOKENS, dtype=torch.long),), path, input_names=["input"],
                      output_names=["logits"], dynamo=True, optimize=False, external_data=False,
                      dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))


def measure(batch, steps, warmup):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Logits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, VOCABULARY, (batch, TOKENS))
    times = []
    for step in range(warmup + steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(ids), ids.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= warmup:
            times.append((time.perf_counter() - began) * 1e3)
    print(json.dumps({"median_ms": statistics.median(times)}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--export")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--warmup", type=int, default=3)
    a = p.parse_args()
    if a.export:
        export(a.export)
    else:
        measure(a.batch, a.steps, a.warmup)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/fixtures/builder: a small decoder from onnxruntime-genai's model builder, data, and the losses of
training.

    make_builder.py [FOLDER]      needs numpy, onnx, onnxruntime-genai, torch and transformers

The decoder has GroupQueryAttention, packed q, k and v, and past inputs. The data are rows of unequal length with their
attention_mask. losses.txt is from PyTorch with the original module and the same mask: AdamW (lr 0.004, weight decay
0.1, betas 0.9 and 0.95), batches of 8 in order, norms clipped to 1.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS, STEPS, BATCH, SAMPLES, LENGTH = 20, 6, 8, 24, 7


def built(module, folder, path):
    """Saves the module as one file, in the builder's form for the CPU."""
    module.save_pretrained(folder + "/module")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))   # the builder copies one
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w0").save_pretrained(folder + "/module")
    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", folder + "/module", "-i", folder + "/module", "-o",
                    folder + "/built", "-p", "fp32", "-e", "cpu", "-c", folder + "/cache"], check=True, stdout=subprocess.DEVNULL)
    model = onnx.load(folder + "/built/model.onnx")
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, path)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "fixtures/builder")
    (root / "data").mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    module = LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=16, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False))
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    with tempfile.TemporaryDirectory() as folder:
        built(module, folder, root / "model.onnx")
    random = np.random.default_rng(3)
    lengths = random.integers(1, LENGTH + 1, SAMPLES)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask == 1, random.integers(3, WORDS, mask.shape), 0)
    labels = np.where(mask == 1, random.integers(0, WORDS, mask.shape), -100)
    for name, array in {"input_ids": ids, "attention_mask": mask, "labels": labels}.items():
        np.save(root / "data" / (name + ".npy"), array)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.004, weight_decay=0.1, betas=(0.9, 0.95))
    losses = []
    for step in range(STEPS):
        rows = [(step * BATCH + i) % SAMPLES for i in range(BATCH)]
        logits = module(input_ids=torch.tensor(ids[rows]), attention_mask=torch.tensor(mask[rows])).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(labels[rows]).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    (root / "losses.txt").write_text("".join("%.9g\n" % v for v in losses))


if __name__ == "__main__":
    main()

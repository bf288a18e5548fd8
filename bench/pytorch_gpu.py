"""The peer of bench/gpu_vs_pytorch.sh: BERT-base, GPT-2 124M and the MNIST sample's network in PyTorch, on one device.

    pytorch_gpu.py --model bert --sequence 128 --export FILE    the model as ONNX, weights random; its cost in FILE.json
    pytorch_gpu.py --model bert --sequence 128 --batch 512      a JSON line: rate, memory
        --kind eager     plain eager, float32 (MNIST)
        --kind fsdp2     eager, fully_shard a block and the rest, parameters bfloat16, gradients reduced in float32
        --kind compile   also compiles blocks, embeddings, head and loss (blocks one by one, as torchtitan does)
        --mask           texts fill half to all of a row, at random, and the rest is padding that attention_mask hides

The exported network equals the trained one: no dropout, SDPA, cross entropy over all positions. With --mask
transformers makes its mask tensors from attention_mask, and the export also writes data, FILE.data: four batches with
the same lengths. Without --mask there is no mask tensor (GPT-2: is_causal). By default transformers makes a mask tensor
for an exporter or a compiler. In eager mode it reads positions back from the device in every step, to find out whether
it needs a mask. This script turns both off. Master weights and the states of the fused AdamW are float32. The loss is
computed from the logits in their own type. Float32 has PyTorch's default setting (products exact, convolutions in
TF32). Batches are on the device before the first step. No step waits for the device: windows of steps are timed between
two synchronizations, after warm-up.

Needs torch, transformers (not for MNIST) and, to export, onnxscript.
"""
import argparse
import datetime
import json
import os
import statistics
import tempfile
import time

import torch
import torch.nn.functional as F

SIZES = {  # vocabulary, width, layers, heads, inner width
    "bert": (30522, 768, 12, 12, 3072),
    "gpt2": (50257, 768, 12, 12, 3072),
}
TINY = (512, 64, 2, 2, 128)


def without_mask_tensors(module, name):
    """Turns mask tensors off: all positions are tokens of one text, so attention needs at most is_causal."""
    if not hasattr(module, name):
        raise SystemExit(f"{module.__name__} has no {name}: this version of transformers makes its masks elsewhere")
    setattr(module, name, lambda *_, **__: None)


class Bert(torch.nn.Module):
    """Masked-language-model logits, flattened to [batch * tokens, vocabulary]."""

    causal = False

    def __init__(self, size, sequence, mask):
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM
        from transformers.models.bert import modeling_bert
        if not mask:
            without_mask_tensors(modeling_bert, "create_bidirectional_mask")
        vocabulary, width, layers, heads, inner = size
        self.m = BertForMaskedLM(BertConfig(
            vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=inner, max_position_embeddings=max(512, sequence), hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation="sdpa"))

    def forward(self, ids, mask=None):
        return self.m(input_ids=ids, attention_mask=mask).logits.flatten(0, 1)

    def blocks(self):
        return self.m.bert.encoder.layer

    def others(self):
        """Returns the compiled parts outside of the blocks, as owner and name."""
        return [(self.m.bert, "embeddings"), (self.m, "cls")]

    def looked_up(self):
        """Returns the number of parameters that are in no product."""
        e = self.m.bert.embeddings
        return e.position_embeddings.weight.numel() + e.token_type_embeddings.weight.numel()


class Gpt2(torch.nn.Module):
    """Language-model logits, flattened to [batch * tokens, vocabulary]."""

    causal = True

    def __init__(self, size, sequence, mask):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel
        from transformers.models.gpt2 import modeling_gpt2
        if not mask:
            without_mask_tensors(modeling_gpt2, "create_causal_mask")
        vocabulary, width, layers, heads, inner = size
        self.m = GPT2LMHeadModel(GPT2Config(
            vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads, n_inner=inner,
            n_positions=max(1024, sequence), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=0, eos_token_id=0, attn_implementation="sdpa"))

    def forward(self, ids, mask=None):
        return self.m(input_ids=ids, attention_mask=mask, use_cache=False).logits.flatten(0, 1)

    def blocks(self):
        return self.m.transformer.h

    def others(self):
        return [(self.m.transformer, "ln_f"), (self.m, "lm_head")]

    def looked_up(self):
        return self.m.transformer.wpe.weight.numel()


def built(a):
    torch.manual_seed(0)
    if a.model == "mnist":
        from pytorch_mnist import Net
        return Net()
    return {"bert": Bert, "gpt2": Gpt2}[a.model](TINY if a.tiny else SIZES[a.model], a.sequence, a.mask)


def export_data(a):
    """Writes four batches, one file per column."""
    import numpy
    os.makedirs(a.export + ".data", exist_ok=True)
    columns = [torch.cat(list(column)) for column in zip(*batches(a, torch.device("cpu")))]
    for name, column in zip(("input", "attention_mask", "labels"), columns):
        numpy.save(f"{a.export}.data/{name}.npy", column.view(-1, a.sequence).numpy())


def export(a):
    model = built(a).eval()
    names = ["input", "attention_mask"] if a.mask else ["input"]
    tokens = torch.ones(2, a.sequence, dtype=torch.long)
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(model, (tokens,) * len(names), a.export, input_names=names, output_names=["logits"], dynamo=True,
                      optimize=False, external_data=False, opset_version=a.opset,
                      dynamic_shapes=({0: batch},) * len(names), verbose=False)
    if a.mask:
        export_data(a)
    _, width, layers, _, _ = TINY if a.tiny else SIZES[a.model]
    parameters = sum(p.numel() for p in model.parameters())
    attention = 12 * layers * width * a.sequence // (2 if model.causal else 1)
    cost = {"parameters": parameters, "flops_per_token": 6 * (parameters - model.looked_up()) + attention}
    with open(a.export + ".json", "w", encoding="utf-8") as file:
        json.dump(cost, file)


def compiled(model):
    """Compiles the model in place. The default limit on compiled variants would leave the last blocks in eager mode."""
    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)
    blocks = model.blocks()
    for i, block in enumerate(blocks):
        blocks[i] = torch.compile(block, dynamic=False)
    for owner, name in model.others():
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False))


def sharded(model, device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device.type, (1,))
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def meet(device, folder):
    """Starts a process group with one rank. The store is a file, so no port is needed."""
    if device.type == "cuda":
        torch.cuda.set_device(0)
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1,
        timeout=datetime.timedelta(seconds=60))


def batches(a, device):
    """Returns four batches for use in turn: inputs, labels, and with --mask their masks."""
    if a.model == "mnist":
        return [(torch.randn(a.batch, 1, 28, 28, device=device), torch.randint(0, 10, (a.batch,), device=device))
                for _ in range(4)]
    vocabulary = (TINY if a.tiny else SIZES[a.model])[0]
    made = []
    for _ in range(4):
        ids = torch.randint(0, vocabulary, (a.batch, a.sequence), device=device)
        lengths = torch.randint(a.sequence // 2, a.sequence + 1, (a.batch, 1), device=device)
        mask = (torch.arange(a.sequence, device=device) < lengths).long()
        labels = torch.randint(0, vocabulary, (a.batch * a.sequence,), device=device)
        made.append((ids, mask, labels) if a.mask else (ids, labels))
    return made


def trainer(a, device, folder):
    """Returns a function of the step's number. It runs a step and returns the loss, on the device."""
    model = built(a).to(device)
    loss_of = F.nll_loss if a.model == "mnist" else F.cross_entropy
    if a.kind == "compile":
        compiled(model)
        loss_of = torch.compile(loss_of, dynamic=False)
    if a.kind != "eager":
        meet(device, folder)
        sharded(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = batches(a, device)

    def step(i):
        *x, y = data[i % len(data)]
        loss = loss_of(model(*x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def measure(a):
    device = torch.device(a.device)
    on_gpu = device.type == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        step = trainer(a, device, folder)
        for i in range(a.warmup):
            loss = step(i)
        wait()
        ready = time.perf_counter() - began
        windows = []
        for _ in range(a.windows):
            wait()
            start = time.perf_counter()
            for i in range(a.steps):
                loss = step(i)
            wait()
            windows.append((time.perf_counter() - start) / a.steps * 1e3)
        row = {"median_ms": statistics.median(windows), "windows_ms": windows, "loss": loss.item(), "ready_s": ready,
               "torch": torch.__version__}
        if on_gpu:
            row |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    print(json.dumps(row), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=["bert", "gpt2", "mnist"], required=True)
    p.add_argument("--sequence", type=int, default=128)
    p.add_argument("--mask", action="store_true", help="padding, and attention_mask as a second input")
    p.add_argument("--tiny", action="store_true", help="two layers of 64, for a try without a GPU")
    p.add_argument("--export", metavar="FILE")
    p.add_argument("--opset", type=int, default=23, help="from 23 on attention is one node")
    p.add_argument("--kind", choices=["eager", "fsdp2", "compile"], default="eager")
    p.add_argument("--device", default="cuda")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--warmup", type=int, default=8)
    p.add_argument("--steps", type=int, default=10, help="of a timed window")
    p.add_argument("--windows", type=int, default=3)
    a = p.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if a.export:
        export(a)
    else:
        measure(a)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Adapters on two ranks against PEFT under PyTorch's FSDP2: equal losses, the step time, a rank's memory.

    lora_vs_peft.py [--fsdp-run build/release/fsdp-run] [--pairs 3] [--steps 15] [--batch 4] [--layers 8]
                    [--width 512] [--folder DIR]

Both train the same adapters (rank 8, alpha 16, for a block's seven products). The model is a Llama-shaped decoder with
random weights. Both use float32, AdamW, the same rows and one adapter file. They run in turn (A B A B ...), each on two
ranks with one thread. The peer shards each block and the root with `fully_shard` (gloo). Its model is created without
memory, and each rank stores only its shards. Prints for every pair:

- the median step without the peer's first three, and the largest resident memory of a rank
- for the peer, also the memory of its libraries before a model exists; for fsdp-run, the planned memory
- the largest relative difference of the losses
- the largest difference of the two written adapters, over their largest change

Then prints medians of the ratios. Exit 1 if losses differ by more than 2e-5. Needs torch, transformers, peft, onnx,
onnxscript, safetensors. Run it on an idle machine.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

RANKS, TOKENS, VOCABULARY, ROWS = 2, 128, 8192, 64
RANK, ALPHA, RATE, DECAY = 8, 16, 1e-3, 0.01
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LOSS_ROOM = 2e-5
PREFIX = "base_model.model."


def make_model(a):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=a.width, num_hidden_layers=a.layers, num_attention_heads=a.width // 64, num_key_value_heads=a.width // 64,
        intermediate_size=a.width * 11 // 4, vocab_size=VOCABULARY, max_position_embeddings=TOKENS, tie_word_embeddings=False,
        use_cache=False)).eval()


def write(a, folder):
    """Writes model.onnx, its weights for the peer, the start adapter, and the rows."""
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(0)
    model = make_model(a).requires_grad_(False)
    torch.onnx.export(model, (torch.zeros(2, TOKENS, dtype=torch.int64),), str(folder / "model.onnx"), input_names=["input_ids"],
                      output_names=["logits"], opset_version=20, dynamo=True, optimize=False, external_data=False,
                      dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    save_file({name: p.contiguous() for name, p in model.named_parameters()}, str(folder / "model.safetensors"))
    adapter = {}
    for name, p in model.named_parameters():
        if name.split(".")[-2] in TARGETS:
            name = PREFIX + name.removesuffix(".weight")
            adapter[name + ".lora_A.weight"] = torch.empty(RANK, p.shape[1]).uniform_(-1, 1) / p.shape[1]**0.5
            adapter[name + ".lora_B.weight"] = torch.randn(p.shape[0], RANK) * 0.02
    save_file(adapter, str(folder / "start.safetensors"))
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, TOKENS + 1))
    (folder / "data").mkdir(exist_ok=True)
    np.save(folder / "data" / "input_ids.npy", np.ascontiguousarray(ids[:, :-1]))
    np.save(folder / "data" / "labels.npy", np.ascontiguousarray(ids[:, 1:]))


def sharded(a, folder):
    """Returns the peer's model: created on the meta device, sharded, then filled from the files, one tensor at a
    time."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors import safe_open
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    with torch.device("meta"):
        base = make_model(a)
        model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0, bias="none"))
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in base.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    base.model.rotary_emb = LlamaRotaryEmbedding(base.config)
    with safe_open(str(folder / "model.safetensors"), "pt") as weights, safe_open(str(folder / "start.safetensors"), "pt") as adapter, torch.no_grad():
        for name, p in model.named_parameters():
            name = name.replace(".base_layer", "").replace(".default", "")
            whole = adapter.get_tensor(name) if ".lora_" in name else weights.get_tensor(name.removeprefix(PREFIX))
            p.to_local().copy_(distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None).to_local())
    return model.train()


def peak_resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peer_rank(rank, a, folder, out):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    import peft  # noqa: F401: its libraries count as resident before the model
    import transformers.models.llama.modeling_llama  # noqa: F401
    before = peak_resident()
    model = sharded(a, folder)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE, weight_decay=DECAY)
    ids, labels = (torch.from_numpy(np.load(folder / "data" / (column + ".npy"))) for column in ("input_ids", "labels"))
    losses, times = [], []
    for step in range(a.steps):
        rows = [(step * a.batch * RANKS + i) % ROWS for i in range(rank, a.batch * RANKS, RANKS)]
        x, y = ids[rows], labels[rows]
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item() / RANKS)
        times.append((time.perf_counter() - began) * 1e3)
    peak = peak_resident()
    whole = {name.replace(".default", ""): p.full_tensor().detach() for name, p in trained.items()}
    if rank == 0:
        from safetensors.torch import save_file
        save_file({name: p.contiguous() for name, p in whole.items()}, str(folder / "peer.safetensors"))
    out.put((rank, statistics.median(times[3:]), peak, losses, before))
    dist.destroy_process_group()


def peer(a, folder):
    import torch.multiprocessing as mp
    context = mp.get_context("spawn")
    out = context.Queue()
    ranks = [context.Process(target=peer_rank, args=(r, a, folder, out)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    rows = sorted(out.get(timeout=600) for _ in ranks)
    for process in ranks:
        process.join()
    print(json.dumps({"median_ms": max(r[1] for r in rows), "peak": max(r[2] for r in rows), "losses": rows[0][3],
                      "before": max(r[4] for r in rows)}))


def run_peer(a, folder):
    words = [sys.executable, __file__, "--peer", "--folder", str(folder)]
    for name in ("steps", "batch", "layers", "width", "port"):
        words += ["--" + name, str(getattr(a, name))]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def run_ours(a, folder):
    """Trains with fsdp-run and returns values with the same names as the peer's. A separate process measures the
    ranks' largest resident size."""
    metrics = folder / "metrics.jsonl"
    command = [a.fsdp_run, folder / "model.onnx", "--data", folder / "data", "--loss", "cross_entropy", "--prediction", "logits", "--labels", "labels",
               "--lora", "*_proj.weight", "--lora-rank", RANK, "--lora-alpha", ALPHA, "--lora-from", folder / "start.safetensors",
               "--adapter", folder / "ours.safetensors", "--optimizer", "adamw", "--lr", RATE, "--weight-decay", DECAY, "--no-shuffle",
               "--batch-size", a.batch, "--steps", a.steps, "--epochs", 1000, "--nproc-per-node", RANKS, "--threads", 1, "--metrics", metrics,
               "--run-dir", "none"]
    script = ("import resource,subprocess,sys;"
              "r=subprocess.run(sys.argv[1:],stdout=2);"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss*1024);sys.exit(r.returncode)")
    run = subprocess.run([sys.executable, "-c", script, *map(str, command)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {"median_ms": rows[-1]["median_step_ms"], "peak": int(run.stdout.split()[-1]), "planned": max(rows[-1]["planned_peak_bytes"]),
            "losses": [row["loss"] for row in rows if row["kind"] == "step"]}


def adapters_differ(folder):
    """Returns the largest difference between the two written adapters, over the largest change by the peer's
    training."""
    from safetensors.numpy import load_file
    start, ours, theirs = (load_file(str(folder / (name + ".safetensors"))) for name in ("start", "ours", "peer"))
    if set(ours) != set(theirs):
        sys.exit("the adapters' names differ: %s" % sorted(set(ours) ^ set(theirs))[:4])
    return max(np.abs(ours[n] - theirs[n]).max() for n in ours) / max(np.abs(theirs[n] - start[n]).max() for n in ours)


def compare(a, folder):
    write(a, folder)
    times, memory, own, worst = [], [], [], 0
    for pair in range(1, a.pairs + 1):
        x, y = run_ours(a, folder), run_peer(a, folder)
        if len(x["losses"]) != a.steps or len(y["losses"]) != a.steps:
            sys.exit("expected %d losses, found %d and %d" % (a.steps, len(x["losses"]), len(y["losses"])))
        off = max(abs(l - m) / abs(m) for l, m in zip(x["losses"], y["losses"]))
        worst = max(worst, off)
        times.append(x["median_ms"] / y["median_ms"])
        memory.append(x["peak"] / y["peak"])
        own.append(x["peak"] / (y["peak"] - y["before"]))
        mib = [n / 2**20 for n in (x["peak"], x["planned"], y["peak"], y["before"])]
        print("pair %d: fsdp-run %.1f ms, %.0f MiB resident, %.0f MiB planned; PEFT %.1f ms, %.0f MiB, %.0f of them before the model" %
              (pair, x["median_ms"], *mib[:2], y["median_ms"], *mib[2:]))
        print("pair %d: losses %.6f to %.6f, they differ by %.1e, the adapters by %.1e" %
              (pair, x["losses"][0], x["losses"][-1], off, adapters_differ(folder)), flush=True)
    print("medians of %d pairs: %.3f of PEFT's step, %.3f of its memory (%.3f of what it adds to its libraries); losses differ by at most %.1e" %
          (a.pairs, *map(statistics.median, (times, memory, own)), worst))
    return 0 if worst <= LOSS_ROOM else 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fsdp-run", default="build/release/fsdp-run")
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--steps", type=int, default=15)
    p.add_argument("--batch", type=int, default=4, help="rows of 128 tokens a rank")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--folder", help="default: a temporary one")
    p.add_argument("--port", type=int, default=29583)
    p.add_argument("--peer", action="store_true", help="PEFT alone, as one JSON line")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(a.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return peer(a, folder) if a.peer else compare(a, folder)


if __name__ == "__main__":
    sys.exit(main())

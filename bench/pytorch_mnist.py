"""The peer of bench/mnist_vs_pytorch.sh: PyTorch on the MNIST sample's network, with one process and one CPU thread per
rank.

It does the same work as `fsdp-run samples/mnist/mnist.onnx --data synthetic --optimizer adamw`: float32, random images,
the loss read after every step. Prints one JSON line: the slowest rank's median step in milliseconds and each rank's
peak resident memory. Needs torch.
"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F


class Net(torch.nn.Module):
    """The network from PyTorch's FSDP tutorial without dropout, as in samples/mnist/mnist.onnx."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3)
        self.conv2 = torch.nn.Conv2d(32, 64, 3)
        self.fc1 = torch.nn.Linear(9216, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), 1)


def sharded(model, kind, world):
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    return model


def run(rank, a, out):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if a.kind != "eager":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port), RANK=str(rank), WORLD_SIZE=str(a.world))
        dist.init_process_group("gloo", rank=rank, world_size=a.world)
    model = sharded(Net(), a.kind, a.world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(rank)
    data = [(torch.randn(a.batch, 1, 28, 28), torch.randint(0, 10, (a.batch,))) for _ in range(4)]
    times = []
    for step in range(a.warmup + a.steps):
        x, y = data[step % 4]
        if dist.is_initialized():
            dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= a.warmup:
            times.append((time.perf_counter() - began) * 1e3)
    out.put((statistics.median(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=["eager", "ddp", "fsdp1", "fsdp2"], default="fsdp1")
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--batch", type=int, default=64, help="samples a rank")
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--port", type=int, default=29581)
    a = p.parse_args()
    context = mp.get_context("spawn")
    out = context.Queue()
    ranks = [context.Process(target=run, args=(r, a, out)) for r in range(a.world)]
    for process in ranks:
        process.start()
    rows = [out.get(timeout=600) for _ in ranks]
    for process in ranks:
        process.join()
    print(json.dumps({"median_ms": max(r[0] for r in rows), "peak_rss": [r[1] for r in rows]}))


if __name__ == "__main__":
    main()

// The time for a copy between pinned host memory and a device, up, down and both ways at once: the
// bound for --cpu-offload (bench/offload.sh).
//
//   build/cuda/bench/pinned_copies [--benchmark_format=json]
//
// The device is the one for `--device cuda`, in the library that OFSDP_CUDA_LIBRARY names. Bytes
// count one way, 256 MiB a copy.
#include <benchmark/benchmark.h>

#include "kernels/core/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

constexpr size_t kBytes = size_t{256} << 20;

// Two blocks on each side, so that both ways at once share no memory.
struct Blocks {
  std::unique_ptr<Device> device;
  MemoryLedger ledger;
  DeviceMemory here[2], there[2];

  Status open() {
    OFSDP_ASSIGN_OR_RETURN(device, find_device(0));
    using Place = DeviceMemory::Place;
    for (int i = 0; i < 2; ++i) {
      OFSDP_ASSIGN_OR_RETURN(
          there[i], DeviceMemory::allocate(*device, ledger, kBytes, Place::kDevice, "a block"));
      OFSDP_ASSIGN_OR_RETURN(here[i], DeviceMemory::allocate(*device, ledger, kBytes,
                                                             Place::kPinned, "a pinned block"));
    }
    return {};
  }
  Status copy(ofsdp_stream* stream, const DeviceMemory& dst, const DeviceMemory& src) const {
    return device->copy(stream, dst.data(), src.data(), kBytes);
  }
};

Status round(const Blocks& blocks, bool up, bool down) {
  Device& device = *blocks.device;
  if (up) OFSDP_RETURN_IF_ERROR(blocks.copy(device.upload(), blocks.there[0], blocks.here[0]));
  if (down) {
    OFSDP_RETURN_IF_ERROR(blocks.copy(device.communication(), blocks.here[1], blocks.there[1]));
  }
  return device.synchronize();
}

void copies(benchmark::State& state, bool up, bool down) {
  Blocks blocks;
  Status status = blocks.open();
  if (status.ok()) status = round(blocks, up, down);  // touches the pages once before
  for (auto _ : state) {
    if (status.ok()) status = round(blocks, up, down);
    if (status.ok()) continue;
    state.SkipWithError(status.message().c_str());
    break;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kBytes));
}

BENCHMARK_CAPTURE(copies, up, true, false)->UseRealTime();
BENCHMARK_CAPTURE(copies, down, false, true)->UseRealTime();
BENCHMARK_CAPTURE(copies, both, true, true)->UseRealTime();

}  // namespace
}  // namespace ofsdp

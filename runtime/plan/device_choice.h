// The device that this rank computes on: --device.
//
// `cpu` opens nothing. `cuda` needs the CUDA library, a driver and a GPU of the rank's own, and
// options that are built for it; what is missing is an error. `auto` takes the GPU where `cuda`
// would work, else the CPU: `notice` then says why, but for a program without the library, which
// never promised a GPU.
//
// `plan --device cuda` needs no GPU: without one it plans for a device that has no memory and runs
// nothing. Its kernels accept every problem and need no workspace, since the library alone knows
// which there are and what they take. It refuses nodes that are joined for a device, so that their
// parts stay apart.
//
// Several ranks all compute on GPUs or none does. The ranks of a host take its GPUs in turn, so
// that more ranks than GPUs share them where the library can do that.
//
// Ownership: the Device is the caller's and outlives all that is planned for it. Threads: one.
// Collective. Errors: kInput, one line; those of an exchange.
#pragma once

#include "fsdp/comm/communicator.h"
#include "kernels/core/device.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

struct ChosenDevice {
  std::unique_ptr<Device> device;  // null: the CPU
  std::string notice;              // a line, or empty
};

Result<ChosenDevice> choose_device(const Options& options, Communicator& communicator);
bool only_plans(const Device& device);

}  // namespace ofsdp::runtime

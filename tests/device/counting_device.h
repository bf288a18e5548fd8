// A device in host memory, behind the same C table as the CUDA library, that counts and checks its
// calls and computes with the CPU's kernels: with OFSDP_CUDA_LIBRARY naming it, the real program runs
// its whole device path, and must give the CPU path's bits. emulated/ makes a second one of it, whose
// operators are those of kernels/cuda/library on the CUDA of tests/emulator.
//
// It is as lazy as a device may be: what is put on a stream waits until the host awaits something,
// and then runs in an order that is drawn from a seed among all that streams and events allow. A
// missing event, a buffer reused too early, pinned memory changed under a copy: each shows in the
// bits. Device memory cannot be touched by the host in between (the pages are protected), so a host
// read ends the process.
//
// Checked, and a failure of the call and of the run where it is not so: every address lies in an
// allocation of the right place and has room; an event is recorded before it is waited for; in a
// capture nothing is allocated, awaited or launched, no event from outside is waited for, and every
// stream that joined is joined again; kernels are not made after the first step.
//
// Environment: COUNTING_DEVICE_REPORT, a file for the counts (written when the device is closed);
// COUNTING_DEVICE_SEED; COUNTING_DEVICE_WITHOUT, an operator it has no kernel for;
// COUNTING_DEVICE_PROBE, why there is no device.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/core/device_table.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"

namespace ofsdp::counting {

struct Operation {
  enum class Kind { kWork, kRecord, kWait };
  Kind kind = Kind::kWork;
  std::function<Status()> work;
  ofsdp_event* event = nullptr;
  uint64_t generation = 0;  // of the event
};

struct Allocation {
  size_t bytes = 0;
  bool pinned = false;
};

}  // namespace ofsdp::counting

struct ofsdp_event {
  uint64_t recorded = 0;  // how often
  uint64_t reached = 0;
  ofsdp_device_graph* capture = nullptr;  // in which it was last recorded, or null
  ofsdp_stream* stream = nullptr;
};

struct ofsdp_stream {
  std::deque<ofsdp::counting::Operation> queue;
  ofsdp_device_graph* capture = nullptr;
  int index = 0;
};

struct ofsdp_device_graph {
  ofsdp_stream* origin = nullptr;
  std::map<ofsdp_stream*, std::deque<ofsdp::counting::Operation>> streams;
};

struct ofsdp_kernel {
  std::unique_ptr<ofsdp::Kernel> kernel;
  ofsdp::Problem problem;
  std::string op;
};

struct ofsdp_device_optimizer {
  const ofsdp::OptimizerDef* definition;
  ofsdp::OptimizerSettings settings;
};

struct ofsdp_device {
  // Puts work on a stream, or into the graph that is captured from it.
  int32_t put(ofsdp_stream* stream, std::function<ofsdp::Status()> work);
  int32_t push(ofsdp_stream* stream, ofsdp::counting::Operation operation);
  int32_t violation(const std::string& text);
  // Whether [data, data + bytes) is in an allocation; `where` is for the message.
  bool holds(const void* data, size_t bytes, bool pinned_too, const char* where);
  bool capturing() const { return !captures.empty(); }

  ofsdp::Status run_until(const std::function<bool()>& reached);
  ofsdp::Status run_graph(const ofsdp_device_graph& graph);
  ofsdp::Status run_one(ofsdp::counting::Operation& operation);
  void protect(bool open);
  size_t draw(size_t below);

  std::string error;
  ofsdp::Status fault;  // of work that failed: what every later await says
  std::map<std::string, long> counts;
  std::vector<std::string> violations;
  std::map<const std::byte*, ofsdp::counting::Allocation> allocations;
  std::vector<ofsdp_stream*> streams;
  std::set<ofsdp_device_graph*> captures;
  uint64_t random = 1;
  ofsdp::Registry registry = ofsdp::make_registry();
  std::vector<ofsdp::OptimizerDef> optimizers = ofsdp::optimizer_list();
};

namespace ofsdp::counting {

void add_order(ofsdp_device_table& table);
void add_work(ofsdp_device_table& table);

// Null: there is none. Of the CPU (cpu_operators.cpp) or of kernels/cuda (emulated/operators.cpp).
std::unique_ptr<Kernel> make_operator(ofsdp_device& device, const std::string& op,
                                      const Problem& problem);

}  // namespace ofsdp::counting

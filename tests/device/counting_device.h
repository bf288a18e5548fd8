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
// Several ranks meet in shared memory (counting_groups.h). A device is driven by its own host, and by
// a thread where another rank waits for it, as far as that rank needs: later than that it may not be.
//
// Environment: COUNTING_DEVICE_REPORT, a file for the counts (written when the device is closed; of
// one of several ranks, with its place behind the name); COUNTING_DEVICE_SEED;
// COUNTING_DEVICE_WITHOUT, an operator it has no kernel for; COUNTING_DEVICE_PROBE, why there is no
// device; COUNTING_DEVICE_ALONE, why ranks cannot be joined; COUNTING_DEVICE_SHARED, why they
// cannot, since all share one device; COUNTING_DEVICE_STUCK=p:n, the place
// whose n-th collective of all ranks never begins.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/device_table.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "tests/device/native_stream.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {

class GraphRun;

std::vector<OptimizerDef> optimizers();  // the CPU's, and "assign"

struct Operation {
  // kSignal: a record in a graph for the host, of another generation in each launch.
  enum class Kind { kWork, kRecord, kWait, kGraph, kSignal };
  Kind kind = Kind::kWork;
  std::function<Status()> work;
  ofsdp_event* event = nullptr;
  uint64_t generation = 0;      // of the event
  std::function<bool()> ready;  // of work that waits for other ranks; empty: it does not
  std::shared_ptr<GraphRun> graph;
};

// A graph that is being run, in a drawn order, as one piece of its stream. Its events are its own, but
// for signals.
class GraphRun {
 public:
  explicit GraphRun(const ofsdp_device_graph& graph);
  bool able() const;
  bool over() const { return left_ == 0; }
  Status run_one(ofsdp_device& device);

 private:
  struct Line {
    const std::deque<Operation>* operations;
    size_t next = 0;
  };
  bool able(const Line& line) const;

  std::vector<Line> lines_;
  size_t left_ = 0;
  std::set<std::pair<ofsdp_event*, uint64_t>> reached_;
  std::map<const Operation*, uint64_t> signals_;  // generations
};

// What plug-ins get of a stream.
struct NativeStream : ofsdp_native_stream {
  NativeStream();
  static void enqueue(ofsdp_native_stream* native, void (*function)(void*), const void* arguments,
                      size_t bytes);
  ofsdp_device* device = nullptr;
  ofsdp_stream* stream = nullptr;
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
  bool signals = false;  // recorded by a graph, for the host alone
  bool timed = false;
  uint64_t at = 0;  // of the device's clock, when it was last reached
};

struct ofsdp_stream {
  std::deque<ofsdp::counting::Operation> queue;
  ofsdp_device_graph* capture = nullptr;
  int index = 0;
  ofsdp::counting::NativeStream native;
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
  bool pinned(const void* data) const;
  bool capturing() const { return !captures.empty(); }

  // Runs what may run until `reached`. With other ranks it may have to wait for them; unless it
  // `waits` it then comes back.
  ofsdp::Status run_until(const std::function<bool()>& reached, bool waits = true);
  ofsdp::Status run_some(ofsdp_stream& stream);
  ofsdp::Status run_one(ofsdp::counting::Operation& operation);
  void protect(bool open);
  void serve();  // other ranks, until stop_serving
  void stop_serving();
  size_t draw(size_t below);

  // Held by whoever calls the table, and by the thread that serves other ranks.
  std::mutex mutex;
  std::vector<ofsdp_group*> groups;
  std::thread server;
  bool closing = false;
  int place = -1;  // of several ranks
  bool tf32 = false;
  uint64_t clock = 0;  // operations run so far: a microsecond each

  std::string error;
  ofsdp::Status fault;  // of work that failed: what every later await says
  std::map<std::string, long> counts;
  std::vector<std::string> violations;
  std::map<const std::byte*, ofsdp::counting::Allocation> allocations;
  std::vector<ofsdp_stream*> streams;
  std::set<ofsdp_device_graph*> captures;
  uint64_t random = 1;
  ofsdp::Registry registry = ofsdp::make_registry();
  std::vector<ofsdp::OptimizerDef> optimizers = ofsdp::counting::optimizers();
};

namespace ofsdp::counting {

void add_order(ofsdp_device_table& table);
void add_work(ofsdp_device_table& table);
void add_norms(ofsdp_device_table& table);
void add_clock(ofsdp_device_table& table);
// [Note: the norm's blocks] of runtime/engine/optimizer_step.h: sixteen sums in turn, added in order.
double squares(const float* values, int64_t count);
void add_groups(ofsdp_device_table& table);
void add_exact(ofsdp_device_table& table);

// A function of the table, called with the device locked.
template <auto F>
struct Locked;
template <typename R, typename... Args, R (*F)(ofsdp_device*, Args...)>
struct Locked<F> {
  static R call(ofsdp_device* device, Args... args) {
    const std::lock_guard lock(device->mutex);
    return F(device, args...);
  }
};

// Null: there is none. Of the CPU (cpu_operators.cpp) or of kernels/cuda (emulated/operators.cpp).
std::unique_ptr<Kernel> make_operator(ofsdp_device& device, const std::string& op,
                                      const Problem& problem);

}  // namespace ofsdp::counting

// A device in host memory, with the same interface (kernels/core/device.h) as the CUDA library. It
// counts and checks calls and computes with the CPU's kernels. If OFSDP_CUDA_LIBRARY names it, the
// real program runs the whole device path, and must give the bits of the CPU path. emulated/ makes
// a second one with the operators of kernels/cuda on the CUDA of tests/emulator; that one counts
// `runs:NAME` and `launches:NAME` for each operator too.
//
// It is as lazy as a device may be. Work on a stream waits until the host awaits something. Then
// work runs in an order that is drawn from a seed among all orders that streams and events allow. A
// missing event, a buffer reused too early, pinned memory changed under a copy: each shows in the
// bits. The host cannot touch device memory in between (the pages are protected): a host read ends
// the process.
//
// Checked; otherwise the call and the run fail: every address lies in an allocation of the right
// place and has room; an event is recorded before it is waited for; in a capture nothing is
// allocated, awaited or launched, no event from outside is waited for, and every stream that joined
// is joined again; kernels are not made after the first step.
//
// Several ranks meet in shared memory (counting_groups.h). Each device is driven by the host of the
// rank. While another rank waits for this device, a thread drives it too, only as far as the other
// rank needs.
//
// Environment: COUNTING_DEVICE_REPORT, a file for the counts (written when the device is closed;
// with several ranks the name ends with the rank's place); COUNTING_DEVICE_SEED;
// COUNTING_DEVICE_WITHOUT, an operator without a kernel; COUNTING_DEVICE_PROBE, why there is no
// device; COUNTING_DEVICE_ALONE, why ranks cannot be joined; COUNTING_DEVICE_SHARED, why they
// cannot, since all share one device; COUNTING_DEVICE_STUCK=p:n, place p never begins the n-th
// collective of all ranks; COUNTING_DEVICE_FAILS=p:n, that collective fails;
// COUNTING_DEVICE_ABORT_HANGS, any: no abort of a group comes back.
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

#include "kernels/core/device.h"
#include "kernels/core/op_def.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/update.h"
#include "tests/device/native_stream.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {

class GraphRun;
class CountingDevice;

struct Operation {
  // kSignal: a graph's record for the host, with a new generation in each launch.
  enum class Kind { kWork, kRecord, kWait, kGraph, kSignal };
  Kind kind = Kind::kWork;
  std::function<Status()> work;
  ofsdp_event* event = nullptr;
  uint64_t generation = 0;      // the event's
  std::function<bool()> ready;  // for work that waits for other ranks; empty: it does not
  std::shared_ptr<GraphRun> graph;
};

// A running graph, one piece of the stream, in a drawn order. Events inside are separate from all
// others, except signals.
class GraphRun {
 public:
  explicit GraphRun(const ofsdp_device_graph& graph);
  bool able() const;
  bool over() const { return left_ == 0; }
  Status run_one(CountingDevice& device);

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

// A stream in the form for plug-ins.
struct NativeStream : ofsdp_native_stream {
  NativeStream();
  static void enqueue(ofsdp_native_stream* native, void (*function)(void*), const void* arguments,
                      size_t bytes);
  CountingDevice* device = nullptr;
  ofsdp_stream* stream = nullptr;
};

struct Allocation {
  size_t bytes = 0;
  bool pinned = false;
};

}  // namespace ofsdp::counting

struct ofsdp_event {
  uint64_t recorded = 0;  // number of records
  uint64_t reached = 0;
  ofsdp_device_graph* capture = nullptr;  // the last capture that recorded it, or null
  ofsdp_stream* stream = nullptr;
  bool signals = false;  // recorded by a graph, only for the host
  bool timed = false;
  uint64_t at = 0;  // the device's clock when it was last reached
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
  std::set<ofsdp_group*> groups = {};  // the graph holds collectives of these
};

namespace ofsdp::counting {

struct Collective;

class CountingDevice final : public Device {
 public:
  CountingDevice();
  ~CountingDevice() override;

  std::string description() const override { return "a device that counts, in host memory"; }

  Result<void*> allocate(DevicePlace place, size_t bytes) override;
  void release(DevicePlace place, void* data) override;

  Result<ofsdp_stream*> make_stream(bool urgent) override;
  void drop_stream(ofsdp_stream* stream) override;
  void* native_stream(ofsdp_stream* stream) override;
  Result<ofsdp_event*> make_event(bool timed) override;
  void drop_event(ofsdp_event* event) override;
  Status record(ofsdp_event* event, ofsdp_stream* stream) override;
  Status signal(ofsdp_event* event, ofsdp_stream* stream) override;
  Status wait(ofsdp_stream* stream, ofsdp_event* event) override;
  Status await(ofsdp_event* event) override;
  Result<bool> reached(ofsdp_event* event) override;
  Status synchronize() override;
  Status copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes) override;
  Status clear(ofsdp_stream* stream, void* dst, size_t bytes) override;
  Status mark(ofsdp_stream* stream, int64_t* pinned, int64_t value) override;
  Status capture_begin(ofsdp_stream* stream) override;
  Result<ofsdp_device_graph*> capture_end(ofsdp_stream* stream) override;
  Status launch(ofsdp_device_graph* graph, ofsdp_stream* stream) override;
  void drop_graph(ofsdp_device_graph* graph) override;

  Status allow(uint32_t what) override;
  std::unique_ptr<Kernel> make_kernel(const std::string& op, const Problem& problem,
                                      KernelChoice* choice) override;

  Status begin(ofsdp_stream* stream, ofsdp_run_state* s, ofsdp_step_numbers* n, bool update,
               bool scales) override;
  Status note_loss(ofsdp_stream* stream, ofsdp_run_state* s, int index, const float* loss,
                   bool stops) override;
  Status convert(ofsdp_stream* stream, const void* src, int32_t from, void* dst, int32_t to,
                 int64_t n) override;
  Status add(ofsdp_stream* stream, const void* src, int32_t from, float* dst, int64_t n) override;
  Status round(ofsdp_stream* stream, float* values, int32_t to, int64_t count) override;
  Status reduce(ofsdp_stream* stream, const ofsdp_reduce* given) override;
  Status clip(ofsdp_stream* stream, ofsdp_run_state* s, double most, bool scales) override;
  Status add_exact_squares(ofsdp_stream* stream, const float* values, int64_t count,
                           ofsdp_exact_sum* sum) override;
  Status take_exact_sum(ofsdp_stream* stream, ofsdp_exact_sum* sum, double* limbs) override;
  Status exact_norm(ofsdp_stream* stream, const double* limbs, ofsdp_run_state* state) override;

  uint64_t identity() const override;
  Status can_join(int sharing, std::string& engine) const override;
  Status make_group_key(void* key) override;
  Result<ofsdp_group*> join_group(const void* key, int place, int count,
                                  const ofsdp_patience& patience) override;
  Result<ofsdp_group*> split_group(ofsdp_group* from, int color, int place) override;
  void leave_group(ofsdp_group* group) override;
  void abort_group(ofsdp_group* group) override;
  Status check_group(ofsdp_group*) override { return {}; }
  Status make_known(ofsdp_group* group, void* data, size_t bytes, bool same_offsets) override;
  Status all_gather(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                    size_t bytes) override;
  Status reduce_scatter(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                        int32_t dtype, int64_t count) override;
  Status all_reduce(ofsdp_stream* stream, ofsdp_group* group, const void* src, void* dst,
                    int32_t dtype, int64_t count, int32_t reduction) override;
  Status exchange_parts(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                        const size_t* offsets, int places, void* dst, size_t bytes) override;

  Status elapsed(ofsdp_event* first, ofsdp_event* then, double* microseconds) override;

  // Puts work on a stream, or into the graph captured from it.
  Status put(ofsdp_stream* stream, std::function<Status()> work);
  Status push(ofsdp_stream* stream, Operation operation);
  Status violation(const std::string& text);
  // Whether [data, data + bytes) is in an allocation; `where` goes into the message of `refused`.
  bool holds(const void* data, size_t bytes, bool pinned_too, const char* where);
  Status refused() const { return fault("{}", error); }  // the last violation
  bool pinned(const void* data) const;
  bool capturing() const { return !captures.empty(); }

  // Runs all work that may run until `reached`. Other ranks may have to go on first: then it waits
  // if `waits`, else returns.
  Status run_until(const std::function<bool()>& reached, bool waits = true);
  Status run_some(ofsdp_stream& stream);
  Status run_one(Operation& operation);
  void protect(bool open);
  void serve();  // other ranks, until stop_serving
  void stop_serving();
  size_t draw(size_t below);

  // Held by callers of the device, and by the thread that serves other ranks.
  std::mutex mutex;
  std::vector<ofsdp_group*> groups;
  std::thread server;
  bool closing = false;
  int place = -1;  // among several ranks
  bool tf32 = false;
  uint64_t clock = 0;  // operations run so far, a microsecond each

  std::string error;
  Status failure;  // from failed work: every later await returns it
  std::map<std::string, long> counts;
  std::vector<std::string> violations;
  std::map<const std::byte*, Allocation> allocations;
  std::vector<ofsdp_stream*> streams;
  std::set<ofsdp_device_graph*> captures;  // under way
  std::set<ofsdp_device_graph*> graphs;
  uint64_t random = 1;
  Registry registry = make_registry();
  Registry updates = update_registry(optimizer_list());

 private:
  Status wait_for_all();
  Status collective(ofsdp_stream* stream, ofsdp_group* group, Collective c);
  Result<ofsdp_group*> open_group(const std::string& name, int place, int count,
                                  const ofsdp_patience& patience);
};

// [Note: the norm's blocks] in runtime/engine/updater.h: sixteen sums, added in order.
double squares(const float* values, int64_t count);

// The CPU's update operation (kernels/core/update.h).
std::unique_ptr<Kernel> make_cpu_update(CountingDevice& device, const std::string& op,
                                        const Problem& problem);

// A kernel of the CPU (cpu_operators.cpp) or of kernels/cuda (emulated/operators.cpp), or null.
std::unique_ptr<Kernel> make_operator(CountingDevice& device, const std::string& op,
                                      const Problem& problem, KernelChoice* choice);

}  // namespace ofsdp::counting

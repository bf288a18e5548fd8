// The state of the runtime that checks the rules (fake_cuda.h): memory, streams, events, captures,
// graphs. Handles point to these objects. They are never freed, so that a destroyed one is still
// known.
//
// Threads: Runtime::mutex guards all of it; every call of the API holds it.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"

namespace fake_cuda {

struct Capture {
  unsigned long long id = 0;
  CUstream_st* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool open = true, valid = true;
  CUgraph_st* graph = nullptr;
};

struct Node {
  std::string call;
  std::function<void()> work;
  std::set<size_t> after;       // nodes
  CUevent_st* event = nullptr;  // for an external record
  int priority = 0;
};

// The nodes that launches share with their graph.
struct Body {
  ~Body();
  std::vector<Node> nodes;
  std::vector<CUuserObject_st*> objects;
};

// One launch of a graph.
struct Launched {
  CUgraphExec_st* graph = nullptr;
  uint64_t turn = 0;            // number among the graph's launches
  std::vector<size_t> missing;  // nodes before each that must still run
  std::vector<size_t> ready;    // nodes that may run
  size_t left = 0;
  std::map<size_t, uint64_t> generations;  // of external records, as they count now
  std::shared_ptr<const Body> body;
};

struct Queued {
  std::string call;
  std::function<void()> work;
  CUevent_st* waits_for = nullptr;
  CUevent_st* records = nullptr;
  uint64_t generation = 0;
  std::shared_ptr<Launched> launched;
  std::vector<std::pair<CUstream_st*, uint64_t>> behind;  // streams, and how far each must be
};

enum class Place { kDevice, kPinned };

struct Allocation {
  uintptr_t data = 0;
  size_t bytes = 0;
  uintptr_t mapped = 0;  // whole pages around it
  size_t mapped_bytes = 0;
  Place place = Place::kDevice;
  std::string call;
  bool lives = true;
};

}  // namespace fake_cuda

struct CUstream_st {
  unsigned long long id = 0;
  unsigned flags = 0;
  int priority = 0;
  bool lives = true;
  std::deque<fake_cuda::Queued> queue;
  uint64_t put = 0, done = 0;
  std::shared_ptr<fake_cuda::Capture> capture;  // open or invalid
  std::set<size_t> after;                       // the next node depends on these
};
struct CUevent_st {
  unsigned long long id = 0;
  unsigned flags = 0;
  bool lives = true;
  uint64_t recorded = 0, reached = 0;           // generations
  uint64_t at = 0;                              // the clock when it was last reached
  bool of_graph = false;                        // recorded by a node
  std::shared_ptr<fake_cuda::Capture> capture;  // the last capture that recorded it
  std::set<size_t> after;                       // the nodes before it there
};
struct CUgraph_st {
  unsigned long long id = 0;
  bool lives = true;
  std::shared_ptr<fake_cuda::Body> body = std::make_shared<fake_cuda::Body>();
};
struct CUgraphExec_st {
  unsigned long long id = 0;
  bool lives = true;
  std::shared_ptr<const fake_cuda::Body> body;
  uint64_t launched = 0, done = 0;
};
struct CUuserObject_st {
  void* data = nullptr;
  cudaHostFn_t destroy = nullptr;
  long references = 0;
};

namespace fake_cuda {

struct Runtime {
  Runtime();

  std::recursive_mutex mutex;
  std::deque<std::unique_ptr<CUstream_st>> streams;
  std::deque<std::unique_ptr<CUevent_st>> events;
  std::deque<std::unique_ptr<CUgraph_st>> graphs;
  std::deque<std::unique_ptr<CUgraphExec_st>> executables;
  std::deque<std::unique_ptr<CUuserObject_st>> objects;
  std::set<const void*> known;                     // all objects above
  std::vector<std::shared_ptr<Capture>> captures;  // open ones
  std::map<uintptr_t, Allocation> allocations;     // by address; freed ones too
  CUstream_st* legacy = nullptr;
  unsigned long long next_id = 0;

  std::map<std::string, long> counts;
  std::map<std::string, cudaError_t> refused;
  std::vector<std::string> broken;
  uint64_t random = 1, clock = 0;
  cudaError_t last = cudaSuccess;
  std::string running;            // the work under way
  uintptr_t range = 0, next = 0;  // reserved addresses

  size_t draw(size_t below);
};

Runtime& runtime();

template <typename Object>
Object* added(std::deque<std::unique_ptr<Object>>& all) {
  Runtime& r = runtime();
  all.push_back(std::make_unique<Object>());
  all.back()->id = ++r.next_id;
  r.known.insert(all.back().get());
  return all.back().get();
}

template <typename... Parts>
std::string text(const Parts&... parts);

// A call of the API: the lock, the count, a refusal that a test requested.
class Call {
 public:
  explicit Call(const char* name);
  const std::string& name() const { return name_; }
  const std::optional<cudaError_t>& refused() const { return refused_; }
  // Remembers `error` for cudaGetLastError.
  cudaError_t gives(cudaError_t error) const;
  cudaError_t breaks(const std::string& rule, const std::string& operand, cudaError_t error) const;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  std::string name_;
  std::optional<cudaError_t> refused_;
};

// --- streams.cpp ---
// Returns the stream of a handle; for an invalid handle null, and reports it.
CUstream_st* stream_of(const Call& call, cudaStream_t handle);
CUevent_st* event_of(const Call& call, cudaEvent_t handle);
// Puts work on a stream or, while it captures, into the graph.
cudaError_t put(const Call& call, cudaStream_t stream, const std::string& name,
                std::function<void()> work);
void put(CUstream_st& stream, Queued queued);

// --- captures.cpp ---
// Whether this thread must not make calls that a capture does not see; reports it, and makes the
// captures concerned invalid.
bool unsafe(const Call& call, const std::string& operand);
// Whether the stream captures; sets `error` if the capture has become invalid.
bool captures(const Call& call, CUstream_st& stream, cudaError_t& error);
size_t add_node(CUstream_st& stream, Node node);
void invalidate(Capture& capture);
void start(const Call& call, Queued& queued, CUgraphExec_st& graph);

// --- running.cpp ---
void run_some();  // a drawn number of operations, so a caller that asks again and again gets on
// False if nothing can run any more.
bool run_until(const Call& call, const std::function<bool()>& reached);
bool run_all(const Call& call);

// --- memory.cpp ---
const Allocation* allocation_at(const void* data);  // alive or not; null: none
std::string described(const void* data);
// Whether [data, data + bytes) lies in one live allocation; else reports it.
bool holds(const Call& call, const char* name, const void* data, size_t bytes);
void open_memory(bool open);

}  // namespace fake_cuda

template <typename... Parts>
std::string fake_cuda::text(const Parts&... parts) {
  const auto one = [](const auto& part) -> std::string {
    using Part = std::decay_t<decltype(part)>;
    if constexpr (std::is_arithmetic_v<Part>) {
      return std::to_string(part);
    } else {
      return std::string(part);
    }
  };
  return (std::string() + ... + one(parts));
}

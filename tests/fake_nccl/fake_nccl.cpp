// A library with NCCL's names that notes its calls, on the runtime that checks CUDA's rules
// (tests/fake_cuda), for tests/fake_nccl/nccl_test.cpp: the requests of
// kernels/cuda/device/groups.cpp, and its use of the answers. Handles are small numbers. Nothing is
// gathered or summed. But collectives are work on their streams, a graph that captured some holds
// their communicator until it is destroyed, and an abort waits for that, as in NCCL. Meanwhile no
// collective may begin on any communicator.
//
//   FAKE_NCCL_VERSION  the answer of ncclGetVersion; 22809
//   FAKE_NCCL_ASYNC    the answer of ncclCommGetAsyncError; 0
//   FAKE_NCCL_SYMMETRIC  0: ranks have no symmetric memory. Since 2.30 there is no window then, and
//                      no error; before, a buffer is registered in its place
//   FAKE_NCCL_HANGS    a call that does not come back, until fake_nccl_release
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

std::mutex mutex;
std::string calls;
std::atomic<bool> released{false};
std::atomic<intptr_t> handles{0};

int variable(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? std::atoi(value) : otherwise;
}

void note(const std::string& call) {
  const std::lock_guard lock(mutex);
  calls += call + "\n";
}

void hang(const char* name) {
  const char* hangs = std::getenv("FAKE_NCCL_HANGS");
  const bool this_one = hangs != nullptr && std::strcmp(hangs, name) == 0;
  while (this_one && !released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

template <typename... Numbers>
std::string text(const char* name, Numbers... numbers) {
  std::string made = name;
  ((made += " " + std::to_string(numbers)), ...);
  return made;
}

intptr_t number(const void* handle) { return reinterpret_cast<intptr_t>(handle); }

// The number by which tests name a stream.
intptr_t number(cudaStream_t stream) {
  unsigned long long id = 0;
  cudaStreamGetId(stream, &id);
  return static_cast<intptr_t>(id);
}

std::map<intptr_t, int> captured;  // by communicator: its collectives in graphs
std::set<intptr_t> aborting;

// Gives a reference to the graph under way, as NCCL does.
void hold_with_graph(intptr_t comm, cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
  if (status != cudaStreamCaptureStatusActive) return;
  {
    const std::lock_guard lock(mutex);
    ++captured[comm];
  }
  cudaUserObject_t object = nullptr;
  cudaUserObjectCreate(
      &object, reinterpret_cast<void*>(comm),
      [](void* held) {
        const std::lock_guard lock(mutex);
        --captured[number(held)];
      },
      1, cudaUserObjectNoDestructorSync);
  cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
}

size_t width(int type) {
  switch (type) {
    case 1:
      return 1;
    case 6:
    case 9:
      return 2;
    default:
      return type == 8 ? 8 : 4;
  }
}

// Begins a collective; 5, ncclInvalidUsage, while an abort is under way.
int collective(const char* name, void* comm, cudaStream_t stream,
               const std::vector<fake_cuda::Operand>& operands) {
  const auto [busy, with] = [] {
    const std::lock_guard lock(mutex);
    return std::pair(!aborting.empty(), aborting.empty() ? 0 : *aborting.begin());
  }();
  if (busy) {
    note(text("used", number(comm)) + text(" while aborting", with));
    return 5;
  }
  hold_with_graph(number(comm), stream);
  return fake_cuda::enqueue(name, stream, operands, [] {}) == cudaSuccess ? 0 : 1;
}

void await_graphs(intptr_t comm) {
  for (;;) {
    {
      const std::lock_guard lock(mutex);
      if (captured[comm] == 0) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

struct Id {
  char internal[128];
};
struct Config {  // the beginning of NCCL's
  size_t size;
  unsigned magic, version;
  int blocking;
};

bool good(const Config& c) { return c.magic == 0xcafebeef && c.version == 21800 && c.size == 48; }

}  // namespace

extern "C" {

// For the test; not in NCCL.
const char* fake_nccl_calls() {
  static std::string asked;
  const std::lock_guard lock(mutex);
  asked = calls;
  return asked.c_str();
}
void fake_nccl_reset() {
  const std::lock_guard lock(mutex);
  calls.clear();
  handles = 0;
  released = false;
}
void fake_nccl_release() { released = true; }

int ncclGetVersion(int* version) {
  *version = variable("FAKE_NCCL_VERSION", 22809);
  return 0;
}
const char* ncclGetErrorString(int) { return "an error"; }
const char* ncclGetLastError(void*) { return "its\ncause"; }
int ncclGetUniqueId(Id* id) {
  std::strcpy(id->internal, "meet here");
  note("id");
  return 0;
}
int ncclCommInitRankConfig(void** comm, int count, Id id, int place, Config* config) {
  hang("init");
  *comm = reinterpret_cast<void*>(++handles);
  note(text("init", count, place, config->blocking, good(*config) ? 1 : 0) + " " + id.internal);
  return 0;
}
int ncclCommSplit(void* comm, int color, int key, void** made, Config*) {
  *made = reinterpret_cast<void*>(++handles);
  note(text("split", number(comm), color, key));
  return 0;
}
int ncclCommDestroy(void* comm) { return note(text("destroy", number(comm))), 0; }
int ncclCommAbort(void* comm) {
  {
    const std::lock_guard lock(mutex);
    aborting.insert(number(comm));
  }
  hang("abort");
  await_graphs(number(comm));
  const std::lock_guard lock(mutex);
  aborting.erase(number(comm));
  calls += text("abort", number(comm)) + "\n";
  return 0;
}
int ncclCommGetAsyncError(void*, int* error) {
  *error = variable("FAKE_NCCL_ASYNC", 0);
  return 0;
}
int ncclCommRegister(void* comm, void*, size_t bytes, void** handle) {
  *handle = reinterpret_cast<void*>(++handles);
  return note(text("register", number(comm), bytes)), 0;
}
int ncclCommDeregister(void* comm, void* handle) {
  return note(text("deregister", number(comm), number(handle))), 0;
}
int ncclCommWindowRegister(void* comm, void*, size_t bytes, void** window, int flags) {
  const bool none =
      variable("FAKE_NCCL_SYMMETRIC", 1) == 0 && variable("FAKE_NCCL_VERSION", 22809) >= 23000;
  *window = none ? nullptr : reinterpret_cast<void*>(++handles);
  return note(text("window", number(comm), bytes, flags)), 0;
}
int ncclCommWindowDeregister(void* comm, void* window) {
  return note(text("unwindow", number(comm), number(window))), 0;
}
int ncclAllGather(const void* src, void* dst, size_t count, int type, void* comm,
                  cudaStream_t stream) {
  note(text("gather", count, type, number(comm), number(stream)));
  const size_t bytes = count * width(type);
  return collective("ncclAllGather", comm, stream, {{"src", src, bytes}, {"dst", dst, bytes}});
}
int ncclReduceScatter(const void* src, void* dst, size_t count, int type, int how, void* comm,
                      cudaStream_t stream) {
  note(text("scatter", count, type, how, number(comm)));
  if (count == 13) return 6;
  const size_t bytes = count * width(type);
  return collective("ncclReduceScatter", comm, stream, {{"src", src, bytes}, {"dst", dst, bytes}});
}
int ncclAllReduce(const void* src, void* dst, size_t count, int type, int how, void* comm,
                  cudaStream_t stream) {
  note(text("reduce", count, type, how, number(comm)));
  const size_t bytes = count * width(type);
  return collective("ncclAllReduce", comm, stream, {{"src", src, bytes}, {"dst", dst, bytes}});
}

int ncclGroupStart() { return note("("), 0; }
int ncclGroupEnd() { return note(")"), 0; }
int ncclSend(const void* src, size_t count, int type, int place, void* comm, cudaStream_t stream) {
  note(text("send", count, type, place, number(comm), number(stream)));
  if (count == 13) return 6;
  return collective("ncclSend", comm, stream, {{"src", src, count * width(type)}});
}
int ncclRecv(void* dst, size_t count, int type, int place, void* comm, cudaStream_t stream) {
  note(text("receive", count, type, place, number(comm), number(stream)));
  return collective("ncclRecv", comm, stream, {{"dst", dst, count * width(type)}});
}

}  // extern "C"

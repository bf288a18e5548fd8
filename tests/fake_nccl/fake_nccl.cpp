// A library with NCCL's names that does nothing but note its calls, for
// tests/fake_nccl/nccl_test.cpp: what kernels/cuda/device/groups.cpp asks of NCCL, and what it
// makes of the answers. Handles are small numbers. It is no NCCL: nothing is gathered or summed.
//
//   FAKE_NCCL_VERSION  ncclGetVersion's answer; 22809
//   FAKE_NCCL_ASYNC    what ncclCommGetAsyncError finds; 0
//   FAKE_NCCL_HANGS    a call that does not come back, until FakeNccl::release
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

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

struct Id {
  char internal[128];
};
struct Config {  // its beginning
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
  hang("abort");
  return note(text("abort", number(comm))), 0;
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
  *window = reinterpret_cast<void*>(++handles);
  return note(text("window", number(comm), bytes, flags)), 0;
}
int ncclCommWindowDeregister(void* comm, void* window) {
  return note(text("unwindow", number(comm), number(window))), 0;
}
int ncclAllGather(const void*, void*, size_t count, int type, void* comm, void* stream) {
  return note(text("gather", count, type, number(comm), number(stream))), 0;
}
int ncclReduceScatter(const void*, void*, size_t count, int type, int how, void* comm, void*) {
  note(text("scatter", count, type, how, number(comm)));
  return count == 13 ? 6 : 0;
}
int ncclAllReduce(const void*, void*, size_t count, int type, int how, void* comm, void*) {
  return note(text("reduce", count, type, how, number(comm))), 0;
}

int ncclGroupStart() { return note("("), 0; }
int ncclGroupEnd() { return note(")"), 0; }
int ncclSend(const void*, size_t count, int type, int place, void* comm, void* stream) {
  note(text("send", count, type, place, number(comm), number(stream)));
  return count == 13 ? 6 : 0;
}
int ncclRecv(void*, size_t count, int type, int place, void* comm, void* stream) {
  return note(text("receive", count, type, place, number(comm), number(stream))), 0;
}

}  // extern "C"

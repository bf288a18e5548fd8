// The runtime's state, messages of broken rules, and the report.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr size_t kMaxLines = 50;

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Written when a process that used the device ends, after all its objects.
struct Report {
  ~Report() {
    const char* file = variable("COUNTING_DEVICE_REPORT");
    if (*file == 0 || runtime().range == 0) return;
    note_what_is_left();
    const Runtime& r = runtime();
    std::ofstream report(file);
    for (const auto& [call, count] : r.counts) report << call << " " << count << "\n";
    for (const std::string& line : r.broken) report << "violation " << line << "\n";
  }
};

constexpr const char* kDestroyed = "everything made is destroyed before the end";

template <typename Objects>
void note_living(const char* what, const char* call, const Objects& objects) {
  for (const auto& object : objects) {
    const bool made = object->id != 0;  // nobody owns the legacy stream
    if (object->lives && made) say_broken(kDestroyed, call, text(what, " ", object->id));
  }
}

}  // namespace

// Never destroyed: other objects may call it while the process ends.
Runtime& runtime() {
  static Runtime* made = new Runtime;
  static Report report;
  return *made;
}

Runtime::Runtime() {
  random = std::strtoull(variable("COUNTING_DEVICE_SEED"), nullptr, 10) * 2 + 1;
  streams.push_back(std::make_unique<CUstream_st>());
  legacy = streams.back().get();
  legacy->priority = 0;
}

size_t Runtime::draw(size_t below) {
  random = random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<size_t>(random >> 33) % below;
}

Call::Call(const char* name) : lock_(runtime().mutex), name_(name) {
  Runtime& r = runtime();
  ++r.counts[name_];
  if (const auto it = r.refused.find(name_); it != r.refused.end()) {
    refused_ = it->second;
    r.refused.erase(it);
  }
}

cudaError_t Call::gives(cudaError_t error) const {
  if (error != cudaSuccess) runtime().last = error;
  return error;
}

cudaError_t Call::breaks(const std::string& rule, const std::string& operand,
                         cudaError_t error) const {
  say_broken(rule, name_, operand);
  return gives(error);
}

void say_broken(const std::string& rule, const std::string& call, const std::string& operand) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  const std::string line = text("cuda rule: ", rule, "; ", call, ": ", operand);
  std::fprintf(stderr, "%s\n", line.c_str());
  if (r.broken.size() < kMaxLines) r.broken.push_back(line);
}

std::vector<std::string> take_broken_rules() {
  const std::lock_guard lock(runtime().mutex);
  return std::exchange(runtime().broken, {});
}

void note_what_is_left() {
  const Runtime& r = runtime();
  const std::lock_guard lock(runtime().mutex);
  for (const auto& capture : r.captures) {
    say_broken("a capture ends", "cudaStreamBeginCapture", text("stream ", capture->origin->id));
  }
  note_living("stream", "cudaStreamCreate", r.streams);
  note_living("event", "cudaEventCreate", r.events);
  note_living("graph", "cudaStreamEndCapture", r.graphs);
  note_living("executable graph", "cudaGraphInstantiate", r.executables);
  for (const auto& [data, a] : r.allocations) {
    if (a.lives) say_broken(kDestroyed, a.call, text(a.bytes, " bytes"));
  }
}

long count_of(const std::string& call) {
  const std::lock_guard lock(runtime().mutex);
  const auto it = runtime().counts.find(call);
  return it == runtime().counts.end() ? 0 : it->second;
}

void refuse_next(const std::string& call, cudaError_t error) {
  const std::lock_guard lock(runtime().mutex);
  runtime().refused[call] = error;
}

void draw_from(uint64_t seed) {
  const std::lock_guard lock(runtime().mutex);
  runtime().random = seed * 2 + 1;
}

}  // namespace fake_cuda

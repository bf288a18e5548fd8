#include "tests/races/watched.h"

#include "tests/races/hooks.h"

namespace ofsdp::races {
namespace {

const char* words_for(Fault fault) {
  switch (fault) {
    case Fault::kBetweenWarps:
      return "race without a __syncthreads between";
    case Fault::kInsideWarp:
      return "race inside a warp, without a __syncwarp between";
    case Fault::kBetweenBlocks:
      return "race between blocks";
    case Fault::kNotWritten:
      return "shared memory is read that this block has not written";
    case Fault::kBeyond:
      return "access beyond an array or a buffer";
    case Fault::kCopying:
      return "touched before a cp.async into it is awaited";
  }
  return "";
}

const char* words_for(Access access) {
  return access == Access::kRead         ? "read"
         : access == Access::kWrite      ? "write"
         : access == Access::kAtomicRead ? "volatile read"
                                         : "atomic";
}

std::string sentence(const Finding& f, const CodeNames& names) {
  const auto code = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(f.kernel));
  const auto of = [](Access access, unsigned thread, const CodeName& name) {
    return std::string(words_for(access)) + " of thread " + std::to_string(thread) + " at " +
           name.place;
  };
  std::string line = names.at(code).function + ": " + words_for(f.fault) + ": " +
                     of(f.access, f.thread, names.at(f.at));
  if (f.earlier_at != 0)
    line += ", after " + of(f.earlier, f.earlier_thread, names.at(f.earlier_at));
  return line + (f.shared ? ", shared memory" : ", global memory") + ", block (" +
         std::to_string(f.block.x) + ", " + std::to_string(f.block.y) + ", " +
         std::to_string(f.block.z) + ")";
}

// A line for a reader, with the names that belong to the addresses.
std::vector<std::string> sentences(const std::vector<Finding>& findings, CodeNames& names) {
  std::set<uint32_t> addresses;
  for (const Finding& f : findings) {
    addresses.insert({f.at, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(f.kernel))});
    if (f.earlier_at != 0) addresses.insert(f.earlier_at);
  }
  add_code_names(addresses, names);
  std::vector<std::string> lines;
  for (const Finding& f : findings) lines.push_back(sentence(f, names));
  return lines;
}

}  // namespace

Watched::Watched() : detector_(memory_.region()) { watch(&detector_); }
Watched::~Watched() { watch(nullptr); }

std::vector<std::string> Watched::run(bool backwards, const Launching& launch) {
  std::vector<std::string> lines;
  memory_.clear();
  Buffers buffers(&memory_);
  emulator::set_backwards(backwards);
  emulator::collect_errors(&lines);
  const cudaError_t error = launch(buffers);
  emulator::collect_errors(nullptr);
  if (error != cudaSuccess) lines.push_back("not launched: error " + std::to_string(error));
  for (std::string& line : sentences(detector_.take_findings(), names_))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace ofsdp::races

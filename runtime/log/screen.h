// Screen: what a run says before its first step and after its last, made from facts. Rank 0 gathers
// the facts (runtime/train/run_facts.h) and prints; progress.h has the lines between.
//
// opening_text has at most kOpeningLines lines for any model: long lists end with how many more
// there are. `plan` and --verbose print tables instead.
//
//   mnist.onnx: trains 8 of 8 tensors, 1,199,882 numbers (all: --verbose on)
//   loss: the mean over the labels of 'labels'
//   settings: nproc_per_node 2, loss nll, optimizer adadelta, lr 1
//   fused: log_softmax_loss 1, max_pool_relu 1
//   wrap transformer: no repeated block found, units by size (--min-params 100000)
//   memory: 98.7 MiB a rank: activations 19.8 MiB, workspace 14.4 MiB, ...
//   full_shard, 2 ranks, 1 thread each, 2 units
//
// Texts of facts are escaped (kernels/base/escaped.h) and have no newline. Threads: any. Errors:
// none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ofsdp::runtime {

inline constexpr int kOpeningLines = 20;  // of 24; a resumed run and its launcher have some too

// A part of the memory at its peak.
struct MemoryShare {
  std::string what;
  uint64_t bytes = 0;
};

struct OpeningFacts {
  std::string model;
  int64_t tensors = 0, trained_tensors = 0, trained_numbers = 0;
  std::string loss;                   // what it is the mean of
  std::vector<std::string> settings;  // "lr 0.1": those that differ from their defaults
  std::vector<std::string> fused;     // "attention 4"
  std::string wrap_notice;            // why not the units that were asked for; or empty
  std::vector<std::string> notices;   // lines of their own: device, types, offload
  std::vector<MemoryShare> memory;
  std::string strategy;
  int64_t ranks = 1, threads = 1, units = 0;
  uint64_t planned_bytes = 0;  // of this rank
};

std::string opening_text(const OpeningFacts& facts);
std::string ranks_line(const OpeningFacts& facts);  // its last line

struct WrittenFile {
  std::string path;
  std::string what;  // empty: the trained file
};

struct ClosingFacts {
  int64_t updates = 0;  // of this run
  int64_t skipped = 0;  // of them, by float16: nothing was updated
  bool stopped_early = false;
  double seconds = 0;
  double rate = 0;  // samples or tokens a second, without evaluation and saves
  const char* rated = "samples";
  double median_step_ms = 0;
  std::vector<uint64_t> peak_bytes;  // a rank each
  std::string exposed;               // lines of exposed_time.h
};

// "done: ...", memory and communication; written_text follows.
std::string closing_text(const ClosingFacts& facts);
std::string written_text(const std::vector<WrittenFile>& files);

// Items separated by commas, in at most `most` lines of 100 columns after `label`; the last one
// says how many items are left out and where they are.
std::string wrapped(const std::string& label, const std::vector<std::string>& items, int most);

}  // namespace ofsdp::runtime

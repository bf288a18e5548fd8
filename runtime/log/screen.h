// A run's lines on stdout: opening_text before the first step, Progress during training,
// closing_text after the last step. Rank 0 gathers the facts (runtime/train/prepared_run.h) and
// prints.
//
// opening_text has at most kOpeningLines lines for any model; long lists end with a count: items
// left out. `plan` and --verbose print tables instead. Texts in facts are escaped
// (kernels/base/text.h) and have no newline.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/log/metrics.h"

namespace ofsdp::runtime {

struct OutputOptions {
  std::string output;            // empty: none
  std::string metrics;           // empty: none
  std::string trace;             // empty: none
  std::vector<std::string> log;  // as given: csv:FILE, tensorboard:FOLDER
  int64_t log_interval = 10;
  int64_t watch = 0;     // updates between two with kept norms; 0: no norms are kept
  bool verbose = false;  // all tables before the first step
};

// Progress writes lines on stdout while a run trains, on rank 0. On a terminal one line is redrawn,
// at most ten times a second, cut to the terminal's width:
//
// epoch 1  [=====>              ] 250/938  loss 0.4321  lr 0.001  5321 samples/s  98.7 MiB  ...
//
// Elsewhere a line is written after the first step, every log_interval steps and the last step:
//
// epoch 1  step 250/938  loss 0.4321  lr 0.001  5321 samples/s  98.7 MiB  ...
//
// In place of `...` a line ends with the time left: `eta 0:12`. If float16 gradients were not
// finite in 3 updates, `skipped 3` follows the rate. Evaluations have separate lines: `eval step
// 938 loss 0.0412 accuracy 0.9871`.
//
// Colours are used on terminals unless NO_COLOR is set (https://no-color.org) or TERM is dumb.
// samples/s (tokens/s if a sample is a token row) is over the time since the previous line, eta
// over all steps so far; the memory is the rank's peak. Epochs count from 1 here. A step does not
// allocate. A failing write is ignored, since the run matters more than the log.
struct ProgressOptions {
  int fd = 1;             // negative: write nothing
  bool terminal = false;  // redraw one line
  int64_t log_interval = OutputOptions().log_interval;
  int64_t first_step = 0;   // updates before this run, if it was resumed
  int64_t total_steps = 0;  // 0: unknown
  int64_t tokens_a_sample = 1;
  bool colours = false;
};

// Returns options for stdout: a bar if it is a terminal.
ProgressOptions stdout_progress(int64_t log_interval, int64_t first_step, int64_t total_steps);

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(const ProgressOptions& options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // ends a remaining bar with a newline

  // Call once per update. `samples`: in this update, on all ranks.
  void step(const StepRow& row, int64_t samples);
  void eval(const EvalRow& row);
  void line(std::string_view text);  // writes another line, not torn by the bar
  void leave_bar();                  // must be called before others print

 private:
  bool is_due(int64_t step, Clock::time_point now) const;
  void draw(const StepRow& row, Clock::time_point now);
  void write_bar(std::string_view text, size_t begin, size_t end);
  void write_all(std::string_view text);

  ProgressOptions options_;
  Clock::time_point start_;
  Clock::time_point last_drawn_;
  int64_t samples_since_drawn_ = 0;
  bool drawn_ = false;   // at least one line or bar
  bool bar_up_ = false;  // the cursor is after a bar
};

inline constexpr int kOpeningLines =
    20;  // a terminal has 24; a resumed run and the launcher print some too

// A share in the peak memory.
struct MemoryShare {
  std::string what;
  uint64_t bytes = 0;
};

struct OpeningFacts {
  std::string model;
  int64_t tensors = 0, trained_tensors = 0, trained_numbers = 0;
  std::string loss;                   // the samples or labels that divide it
  std::vector<std::string> settings;  // "lr 0.1"; options that differ from their defaults
  std::vector<std::string> fused;     // "attention 4"
  std::string wrap_notice;            // why the requested units are not used; may be empty
  std::vector<std::string> notices;   // whole lines: device, types, offload
  std::vector<MemoryShare> memory;
  std::string strategy;
  int64_t ranks = 1, threads = 1, units = 0;
  uint64_t planned_bytes = 0;  // for this rank
};

std::string opening_text(const OpeningFacts& facts);
std::string ranks_line(const OpeningFacts& facts);  // the opening's last line

struct WrittenFile {
  std::string path;
  std::string what;  // empty: the trained file
};

struct ClosingFacts {
  int64_t updates = 0;  // in this run
  int64_t skipped = 0;  // updates skipped by float16
  bool stopped_early = false;
  double seconds = 0;
  double rate = 0;  // samples or tokens a second, without evaluation and saves
  const char* rated = "samples";
  double median_step_ms = 0;
  std::vector<uint64_t> peak_bytes;  // one per rank
  std::string exposed;               // exposed_time.h's lines
};

// Returns "done: ...", memory and communication; written_text follows.
std::string closing_text(const ClosingFacts& facts);
std::string written_text(const std::vector<WrittenFile>& files);

// Returns items separated by commas in at most `most` lines with 100 columns after `label`. The
// last line says how many items are left out, and which option shows them.
std::string wrapped(const std::string& label, const std::vector<std::string>& items, int most);

}  // namespace ofsdp::runtime

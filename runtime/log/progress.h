// Progress: lines on stdout while a run trains; rank 0 alone. On a terminal one line is redrawn (at
// most ten times a second, cut to the terminal's width):
//
//   epoch 1  [=====>              ] 250/938  loss 0.4321  lr 0.001  5321 samples/s  98.7 MiB  ...
//
// Anywhere else a line is written after the first step, every log_interval steps and the last one:
//
//   epoch 1  step 250/938  loss 0.4321  lr 0.001  5321 samples/s  98.7 MiB  ...
//
// For `...` a line ends with the time that is left: `eta 0:12`. In float16, `skipped 3` follows the
// rate if gradients were not finite in 3 updates of the run.
//
// Evaluations are lines of their own and stay: `eval  step 938  loss 0.0412  accuracy 0.9871`.
// Colours are for terminals, unless NO_COLOR is set (https://no-color.org) or TERM is dumb.
// samples/s (tokens/s, where a sample is a row of tokens) is over the time since the line before,
// eta from the time all steps so far took. The memory is the rank's peak.
//
// Epochs count from 1 here, as people do. A step allocates nothing. A failing write is ignored: the
// run matters more than its log. Ownership: borrows the descriptor. Threads: one. Errors: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/log/metrics.h"

namespace ofsdp::runtime {

struct ProgressOptions {
  int fd = 1;             // negative: nobody reads, and nothing is written
  bool terminal = false;  // redraw one line
  int64_t log_interval = 10;
  int64_t first_step = 0;   // updates done before this run (a resumed one)
  int64_t total_steps = 0;  // 0: not known
  int64_t tokens_a_sample = 1;
  bool colours = false;
};

// stdout, as a bar when it is a terminal.
ProgressOptions stdout_progress(int64_t log_interval, int64_t first_step, int64_t total_steps);

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(const ProgressOptions& options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // ends a bar that is still there with a new line

  // Call once an update. `samples`: of this update, over all ranks.
  void step(const StepRow& row, int64_t samples);
  void eval(const EvalRow& row);
  void line(std::string_view text);  // any other line, not torn by the bar
  void leave_bar();                  // before lines that others print

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

}  // namespace ofsdp::runtime

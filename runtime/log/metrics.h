// The metrics file: JSON Lines, one object a step, an evaluation and the end of the run; written by
// rank 0 alone. Fields are those of the contract; NaN and infinity are null; `loss` and `grad_norm`
// have the nine digits that tell every float32 apart.
//
// A line is one write(2), so a reader sees whole lines and a killed run loses none. A step and an
// evaluation allocate nothing, watched norms only in the first row. A default-made writer has no
// file and writes nothing.
//
// Ownership: owns the file descriptor. Threads: one. Errors: open is kInput (before the first
// step); a failing write (a full disk) is kFault naming the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/posix_file.h"
#include "runtime/log/line_buffer.h"
#include "runtime/log/row_log.h"
#include "runtime/log/unit_norms.h"

namespace ofsdp::runtime {

struct MetricValue {
  std::string name;
  std::optional<double> value = {};  // absent: null
};

struct StepRow {
  int64_t step = 0;  // updates, from 1
  int64_t epoch = 0;
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping, unscaled
  double lr = 0;         // the rate this update used
  double step_ms = 0;
  double samples_per_s = 0;
  uint64_t peak_bytes = 0;
  bool skipped = false;  // float16: the gradients were not finite, nothing was updated
  int64_t skips = 0;     // of the run so far
  std::span<const MetricValue> losses = {};  // of each --loss by its prediction, where they say it
  std::span<const WatchedUnit> watch = {};   // of --watch, in an update that is watched
};

struct EvalRow {
  int64_t step = 0;
  int64_t epoch = 0;
  double loss = 0;                            // NaN: no label was kept
  std::span<const MetricValue> metrics = {};  // in the order of --eval-metrics
  std::span<const MetricValue> losses = {};   // as of a step
};

struct EndRow {
  int64_t steps = 0;
  double seconds = 0;
  double median_step_ms = 0;
  std::span<const uint64_t> peak_bytes;  // a rank each
  std::span<const uint64_t> planned_peak_bytes;
  bool stopped_early = false;  // by --early-stop
  int64_t skipped = 0;         // updates
};

class MetricsWriter {
 public:
  enum class Mode { kTruncate, kAppend };  // a new run, a resumed run

  // An empty path gives a writer without a file.
  static Result<MetricsWriter> open(const std::string& path, Mode mode);
  // Adds a file of --log; `metrics`: names as RowLog takes them.
  Status add_log(const std::string& log, const std::vector<std::string>& metrics, Mode mode);

  // Also writes lines to the pipe of OFSDP_ROWS_FD, which a caller of the library reads.
  void also_to_caller();

  Status step(const StepRow& row);
  Status eval(const EvalRow& row);
  Status end(const EndRow& row);

 private:
  Status close_line(std::string_view line);
  Status write_line(std::string_view line);

  Status write_logs(std::string_view line);

  UniqueFd fd_;
  int caller_ = -1;  // lives as long as the process
  std::string path_;
  std::vector<RowLog> logs_;
  std::string line_;  // of a step with watched norms
};

}  // namespace ofsdp::runtime

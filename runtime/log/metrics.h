// The metrics file: JSON Lines, one object for each step, each evaluation and the run's end,
// written by rank 0. docs/ lists the fields; NaN and infinity are null; `loss` and `grad_norm` have
// nine digits, which tell every float32 apart.
//
// A line is one write(2), so a reader sees whole lines and a killed run loses none. Without logs,
// step and evaluation rows do not allocate, except the first row with watched norms. A
// default-constructed writer writes nothing.
//
// Owns the file descriptor. Errors: kInput from open and add_log; kFault with the file if a write
// fails (a full disk).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/names.h"
#include "kernels/base/posix_file.h"
#include "runtime/log/unit_norms.h"

namespace ofsdp::runtime {

class RowLog;
class RunCurves;
struct LoggedRun;

// Numbers that an evaluation gives besides the loss.
enum class MetricKind {
#define METRIC(name, Kind, ...) k##Kind,
#include "runtime/log/metrics.inc"
};
constexpr auto enum_names(MetricKind) {
  return std::to_array<EnumName<MetricKind>>({
#define METRIC(name, Kind, ...) {MetricKind::k##Kind, #name},
#define FORM(...)
#include "runtime/log/metrics.inc"
  });
}

// The rows that a metric adds up: of predictions with integer labels, of predictions with numbers,
// the scores of all samples, or of rows of labels without places in time.
enum class MetricRows { kClasses, kValues, kScores, kSequences };

// A row of metrics.inc: how many exact counts and double sums a metric keeps.
struct MetricTraits {
  MetricRows rows = MetricRows::kClasses;
  bool of_labels = false;              // also of columns of labels 0 and 1
  size_t counts = 0, counts_each = 0;  // and for each class
  size_t sums = 0, sums_each = 0;      // and for each column
  bool likelihood = false;             // of the label
  bool lower_is_better = false;
};
const MetricTraits& metric_traits(MetricKind kind);

struct MetricSpec {
  MetricKind kind = MetricKind::kAccuracy;
  int64_t k = 1;                // kTopK; kWer: the class between words, -1 if there is none
  std::string name;             // as given: the eval row's key
  std::string prediction = {};  // empty: the loss's
};

// Returns whether smaller numbers are better: the loss's ("loss" or "") and some metrics'.
bool lower_is_better(std::span<const MetricSpec> metrics, std::string_view name);

// LineBuffer builds text in a fixed buffer, without allocating. Text that does not fit is cut off.
class LineBuffer {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    const size_t room = buffer_.size() - size_;
    const auto result =
        fmt::format_to_n(buffer_.data() + size_, room, format, std::forward<Args>(args)...);
    size_ += std::min(room, result.size);
    cut_off_ = cut_off_ || result.size > room;
  }
  void cut(size_t width) { size_ = std::min(size_, width); }
  std::string_view view() const { return {buffer_.data(), size_}; }
  bool cut_off() const { return cut_off_; }

 private:
  std::array<char, 4096> buffer_;
  size_t size_ = 0;
  bool cut_off_ = false;
};

struct MetricValue {
  std::string name;
  std::optional<double> value = {};  // none: null
};

struct StepRow {
  int64_t step = 0;  // updates, from 1
  int64_t epoch = 0;
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping, unscaled
  double lr = 0;         // this update's rate
  double step_ms = 0;
  double samples_per_s = 0;
  uint64_t peak_bytes = 0;
  bool skipped = false;  // float16: gradients were not finite, so nothing was updated
  int64_t skips = 0;     // in the run so far
  std::span<const MetricValue> losses = {};  // one per --loss, named by its prediction
  std::span<const WatchedUnit> watch = {};   // for --watch; empty if this update is not watched
};

struct EvalRow {
  int64_t step = 0;
  int64_t epoch = 0;
  double loss = 0;                            // NaN: no label was kept, if no rank is bad
  std::span<const MetricValue> metrics = {};  // as in --eval-metrics
  std::span<const MetricValue> losses = {};   // as in StepRow
  int bad_rank = -1;                          // the first with a loss that is NaN or infinite

  bool has_label() const { return !std::isnan(loss) || bad_rank >= 0; }
};

struct EndRow {
  int64_t steps = 0;
  double seconds = 0;
  double median_step_ms = 0;
  std::span<const uint64_t> peak_bytes;  // one per rank
  std::span<const uint64_t> planned_peak_bytes;
  bool stopped_early = false;  // by --early-stop
  int64_t skipped = 0;         // updates
};

class MetricsWriter {
 public:
  enum class Mode { kTruncate, kAppend };  // for a new run, for a resumed run

  MetricsWriter();
  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;
  ~MetricsWriter();

  // With an empty path, returns a writer without a file.
  static Result<MetricsWriter> open(const std::string& path, Mode mode);
  // Adds a --log file (runtime/log/row_log.h). `metrics`: the names in eval rows, "losses/NAME" for
  // each loss, and watched_columns. `run`: what other tools show.
  Status add_log(const std::string& log, const std::vector<std::string>& metrics, Mode mode,
                 const LoggedRun& run);
  Status add_log(const std::string& log, const std::vector<std::string>& metrics, Mode mode);

  // Keeps the rows from now on as curves (runtime/log/run_curves.h), for pictures at the end. For a
  // resumed run, the rows that the file has already come first.
  void keep_curves();
  const RunCurves* curves() const { return curves_.get(); }  // null: not kept

  // Also writes the rows to the pipe OFSDP_ROWS_FD, which a library caller reads.
  void also_to_caller();

  Status step(const StepRow& row);
  Status eval(const EvalRow& row);
  Status end(const EndRow& row);

 private:
  Status close_line(std::string_view line);
  Status write_line(std::string_view line);

  Status write_logs(std::string_view line);

  UniqueFd fd_;
  int caller_ = -1;  // open until the process ends
  std::string path_;
  Mode mode_ = Mode::kTruncate;
  std::vector<std::unique_ptr<RowLog>> logs_;
  std::unique_ptr<RunCurves> curves_;
  std::string line_;  // a step with watched norms
};

}  // namespace ofsdp::runtime

// RunCurves: the numbers of a run's metrics rows as curves of bounded size. The report
// (runtime/report/run_report.h) and the plot in the terminal (terminal_plot.h) draw them.
//
// A curve has at most Curve::kMaxBuckets buckets. If it is full, neighbours are joined, so a bucket
// covers more and more steps; it keeps their least, largest and mean value. Values that are not
// finite are left out.
//
// A resumed run may make updates again that the rows already have: then the later row counts.
// A step allocates nothing. Errors: kInput from read_curves if the file cannot be opened.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/log/metrics.h"

namespace ofsdp::runtime {

struct CurveBucket {
  int64_t first = 0, last = 0;  // steps
  double least = 0, largest = 0, sum = 0;
  int64_t count = 0;

  double mean() const { return sum / static_cast<double>(count); }
  double middle() const { return 0.5 * static_cast<double>(first + last); }
};

class Curve {
 public:
  static constexpr size_t kMaxBuckets = 512;

  Curve() { buckets_.reserve(kMaxBuckets); }

  void add(int64_t step, double value);
  // Removes the values from `step` on, except those that share a bucket with earlier ones.
  void cut(int64_t step);

  bool empty() const { return buckets_.empty(); }
  std::span<const CurveBucket> buckets() const { return buckets_; }
  double last() const { return last_; }  // the value that was added last; NaN if there is none

  // Each REQUIRES: !empty().
  double least() const;
  double largest() const;
  // Returns the first step of the bucket with the least or the largest value.
  int64_t step_of_least() const;
  int64_t step_of_largest() const;
  double sum() const;

 private:
  void join_neighbours();

  std::vector<CurveBucket> buckets_;
  int64_t values_each_ = 1;  // that a bucket takes
  double last_ = std::numeric_limits<double>::quiet_NaN();
};

struct NamedCurve {
  std::string name;
  Curve curve;
};

class RunCurves {
 public:
  static constexpr size_t kMaxMarks = 500;

  RunCurves();

  void step(const StepRow& row);
  void eval(const EvalRow& row);
  void end(const EndRow& row);
  // Adds a line of a metrics file. A line that is no row is left out, such as one cut off by a full
  // disk.
  void line(std::string_view row);

  // Says that the next step is the first one of a resumed run. Rows show this themselves if a run
  // has ended before or makes an update again.
  void resume() { resumes_ = true; }

  Curve loss, lr, grad_norm, step_ms, samples_per_s, samples, peak_bytes;
  std::vector<NamedCurve> evaluations;  // "loss" first, then metrics and "losses/NAME"
  std::vector<NamedCurve> losses;       // of training, if a run has several

  int64_t steps = 0;      // the last update
  int64_t skipped = 0;    // updates
  int64_t undefined = 0;  // losses that are not finite
  // The first kMaxMarks steps of each kind.
  std::vector<int64_t> skipped_at, undefined_at, resumed_at;

  bool ended = false, stopped_early = false;
  double median_step_ms = 0;
  std::vector<uint64_t> rank_peaks, planned_peaks;  // bytes, one per rank; empty: no end row

 private:
  void go_back(int64_t step);

  bool resumes_ = false;
};

// Returns the curves of a metrics file.
Result<RunCurves> read_curves(const std::string& path);

}  // namespace ofsdp::runtime

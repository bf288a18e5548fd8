#include "runtime/log/run_curves.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace ofsdp::runtime {

namespace {

using RowJson = nlohmann::ordered_json;  // columns in the order of the file

void join_bucket(CurveBucket& bucket, const CurveBucket& next) {
  bucket.last = next.last;
  bucket.least = std::min(bucket.least, next.least);
  bucket.largest = std::max(bucket.largest, next.largest);
  bucket.sum += next.sum;
  bucket.count += next.count;
}

Curve& curve_named(std::vector<NamedCurve>& curves, std::string_view name) {
  const auto found = std::ranges::find(curves, name, &NamedCurve::name);
  if (found != curves.end()) return found->curve;
  curves.push_back({std::string(name), {}});
  return curves.back().curve;
}

void mark(std::vector<int64_t>& steps, int64_t step) {
  if (steps.size() < RunCurves::kMaxMarks) steps.push_back(step);
}

double number_in(const RowJson& row, const char* key) {
  const auto found = row.find(key);
  const bool there = found != row.end() && found->is_number();
  return there ? found->get<double>() : std::nan("");
}

int64_t integer_in(const RowJson& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::vector<uint64_t> bytes_in(const RowJson& row, const char* key) {
  std::vector<uint64_t> bytes;
  const auto found = row.find(key);
  if (found == row.end() || !found->is_array()) return bytes;
  for (const RowJson& item : *found) {
    if (item.is_number_unsigned()) bytes.push_back(item.get<uint64_t>());
  }
  return bytes;
}

std::vector<MetricValue> values_in(const RowJson& object) {
  std::vector<MetricValue> values;
  for (const auto& [name, value] : object.items()) {
    if (name == "kind" || name == "step" || name == "epoch" || name == "loss") continue;
    if (value.is_number()) values.push_back({name, value.get<double>()});
    if (value.is_null()) values.push_back({name});
  }
  return values;
}

std::vector<MetricValue> losses_in(const RowJson& row) {
  const auto found = row.find("losses");
  const bool there = found != row.end() && found->is_object();
  return there ? values_in(*found) : std::vector<MetricValue>();
}

}  // namespace

void Curve::add(int64_t step, double value) {
  last_ = value;
  if (!std::isfinite(value)) return;
  const CurveBucket one{step, step, value, value, value, 1};
  if (!buckets_.empty() && buckets_.back().count < values_each_) {
    return join_bucket(buckets_.back(), one);
  }
  if (buckets_.size() == kMaxBuckets) join_neighbours();
  buckets_.push_back(one);
}

void Curve::join_neighbours() {
  for (size_t i = 0; i + 1 < buckets_.size(); i += 2) {
    join_bucket(buckets_[i], buckets_[i + 1]);
    buckets_[i / 2] = buckets_[i];
  }
  buckets_.resize(buckets_.size() / 2);
  values_each_ *= 2;
}

void Curve::cut(int64_t step) {
  while (!buckets_.empty() && buckets_.back().first >= step) buckets_.pop_back();
  if (!buckets_.empty()) buckets_.back().last = std::min(buckets_.back().last, step - 1);
}

double Curve::least() const { return std::ranges::min(buckets_, {}, &CurveBucket::least).least; }
double Curve::largest() const {
  return std::ranges::max(buckets_, {}, &CurveBucket::largest).largest;
}
int64_t Curve::step_of_least() const {
  return std::ranges::min_element(buckets_, {}, &CurveBucket::least)->first;
}
int64_t Curve::step_of_largest() const {
  return std::ranges::max_element(buckets_, {}, &CurveBucket::largest)->first;
}

double Curve::sum() const {
  double sum = 0;
  for (const CurveBucket& bucket : buckets_) sum += bucket.sum;
  return sum;
}

RunCurves::RunCurves() {
  for (auto* marks : {&skipped_at, &undefined_at, &resumed_at}) marks->reserve(kMaxMarks);
}

// A resumed run starts at its checkpoint, which may be older than the last row.
void RunCurves::go_back(int64_t step) {
  for (Curve* curve : {&loss, &lr, &grad_norm, &step_ms, &samples_per_s, &samples, &peak_bytes}) {
    curve->cut(step);
  }
  for (auto* curves : {&evaluations, &losses}) {
    for (NamedCurve& named : *curves) named.curve.cut(step);
  }
  const auto later = [step](int64_t marked) { return marked >= step; };
  skipped -= static_cast<int64_t>(std::erase_if(skipped_at, later));
  undefined -= static_cast<int64_t>(std::erase_if(undefined_at, later));
}

void RunCurves::step(const StepRow& row) {
  if (row.step <= steps) go_back(row.step);
  if (steps > 0 && (resumes_ || ended || row.step <= steps)) mark(resumed_at, row.step);
  resumes_ = ended = false;
  steps = row.step;
  loss.add(row.step, row.loss);
  lr.add(row.step, row.lr);
  grad_norm.add(row.step, row.grad_norm);
  step_ms.add(row.step, row.step_ms);
  samples_per_s.add(row.step, row.samples_per_s);
  samples.add(row.step, row.samples_per_s * row.step_ms / 1e3);
  if (row.peak_bytes > 0) peak_bytes.add(row.step, static_cast<double>(row.peak_bytes));
  for (const MetricValue& value : row.losses) {
    curve_named(losses, value.name).add(row.step, value.value.value_or(std::nan("")));
  }
  if (row.skipped) mark(skipped_at, row.step);
  skipped += row.skipped ? 1 : 0;
  const bool defined = std::isfinite(row.loss);
  if (!defined) mark(undefined_at, row.step);
  undefined += defined ? 0 : 1;
}

void RunCurves::eval(const EvalRow& row) {
  curve_named(evaluations, "loss").add(row.step, row.loss);
  for (const MetricValue& value : row.metrics) {
    curve_named(evaluations, value.name).add(row.step, value.value.value_or(std::nan("")));
  }
  for (const MetricValue& value : row.losses) {
    curve_named(evaluations, "losses/" + value.name)
        .add(row.step, value.value.value_or(std::nan("")));
  }
}

void RunCurves::end(const EndRow& row) {
  ended = true;
  stopped_early = row.stopped_early;
  median_step_ms = row.median_step_ms;
  rank_peaks.assign(row.peak_bytes.begin(), row.peak_bytes.end());
  planned_peaks.assign(row.planned_peak_bytes.begin(), row.planned_peak_bytes.end());
}

void RunCurves::line(std::string_view text) {
  const RowJson row = RowJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object() || !row.contains("kind") || !row["kind"].is_string()) return;
  const std::string kind = row["kind"].get<std::string>();
  const std::vector<MetricValue> parts = losses_in(row);
  const int64_t at = integer_in(row, "step"), epoch = integer_in(row, "epoch");
  const double value = number_in(row, "loss");
  if (kind == "step") {
    step({.step = at,
          .epoch = epoch,
          .loss = value,
          .grad_norm = number_in(row, "grad_norm"),
          .lr = number_in(row, "lr"),
          .step_ms = number_in(row, "step_ms"),
          .samples_per_s = number_in(row, "samples_per_s"),
          .peak_bytes = static_cast<uint64_t>(integer_in(row, "peak_bytes")),
          .skipped = row.contains("skipped"),
          .losses = parts});
  } else if (kind == "eval") {
    const std::vector<MetricValue> metrics = values_in(row);
    eval({at, epoch, value, metrics, parts});
  } else if (kind == "end") {
    const std::vector<uint64_t> peaks = bytes_in(row, "peak_bytes");
    const std::vector<uint64_t> planned = bytes_in(row, "planned_peak_bytes");
    end({.steps = integer_in(row, "steps"),
         .seconds = number_in(row, "seconds"),
         .median_step_ms = number_in(row, "median_step_ms"),
         .peak_bytes = peaks,
         .planned_peak_bytes = planned,
         .stopped_early = row.contains("stopped")});
  }
}

Result<RunCurves> read_curves(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return input_error("{}: cannot be read: {}", path, std::strerror(errno));
  RunCurves curves;
  for (std::string line; std::getline(file, line);) curves.line(line);
  return curves;
}

}  // namespace ofsdp::runtime

#include "runtime/commands/algorithm_rate.h"

#include <numbers>

namespace ofsdp::runtime {
namespace {

constexpr int64_t kFloat = 1, kDouble = 11;  // ONNX's numbers of element types

int64_t total_of(const Options& options) {
  const ScheduleOptions& s = options.schedule;
  return s.total_steps.value_or(options.run.steps.value_or(0));
}

}  // namespace

Status check_rate(const Options& options) {
  const ScheduleOptions& s = options.schedule;
  if (options.optimizer.clip_grad_norm) {
    return input_error(
        "--clip-grad-norm: the norm of all gradients has no place in an update of each; say it "
        "when training");
  }
  if (s.kind == ScheduleKind::kStep && s.unit == ScheduleUnit::kEpoch) {
    return input_error("--schedule-unit epoch: a training_info counts updates: expected step");
  }
  const bool ends = s.kind != ScheduleKind::kConstant && s.kind != ScheduleKind::kStep;
  if (!ends || total_of(options) > 0) return {};
  return input_error(
      "--total-steps: expected the updates that --lr-schedule is made for, found "
      "neither it nor --steps");
}

std::string AlgorithmRate::once(const std::string& key, const std::function<std::string()>& make) {
  if (const auto found = made_.find(key); found != made_.end()) return found->second;
  const std::string value = b_.add1("Cast", {make()}, {{"to", kFloat}});
  return made_[key] = value;
}

std::string AlgorithmRate::count() {
  if (count_.empty()) count_ = b_.scalar("T", DType::kInt64, 0);
  return count_;
}

std::string AlgorithmRate::next_count() {
  if (next_count_.empty()) {
    next_count_ =
        b_.add1("Add", {count(), b_.scalar("one", DType::kInt64, 1)}, {}, count() + ".new");
  }
  return next_count_;
}

std::string AlgorithmRate::exact_count() {
  if (exact_count_.empty()) exact_count_ = b_.add1("Cast", {count()}, {{"to", kDouble}});
  return exact_count_;
}

std::string AlgorithmRate::exact_next_count() {
  if (exact_next_count_.empty())
    exact_next_count_ = b_.add1("Cast", {next_count()}, {{"to", kDouble}});
  return exact_next_count_;
}

std::string AlgorithmRate::rate() {
  const ScheduleOptions& s = options_.schedule;
  if (!rate_.empty()) return rate_;
  const bool constant = s.kind == ScheduleKind::kConstant && s.warmup_steps == 0;
  rate_ = constant ? b_.scalar("R", DType::kFloat32, options_.optimizer.lr)
                   : b_.add1("Cast", {exact_rate()}, {{"to", kFloat}}, "R");
  return rate_;
}

std::string AlgorithmRate::exact_rate() {
  if (!exact_rate_.empty()) return exact_rate_;
  const ScheduleOptions& s = options_.schedule;
  if (s.kind == ScheduleKind::kConstant && s.warmup_steps == 0)
    return exact_rate_ = b_.scalar("R", DType::kFloat64, options_.optimizer.lr);
  return exact_rate_ = b_.add1("Mul", {number(options_.optimizer.lr), factor()}, {}, "R");
}

std::string AlgorithmRate::factor() {
  const ScheduleOptions& s = options_.schedule;
  const auto warmup = static_cast<double>(s.warmup_steps);
  const std::string at = exact_count();
  std::string after = number(1);
  if (s.kind == ScheduleKind::kStep) {
    const std::string behind = b_.add1("Sub", {at, number(warmup)});
    const std::string stairs =
        b_.add1("Floor", {b_.add1("Div", {behind, number(static_cast<double>(s.step_size))})});
    after = b_.add1("Pow", {number(s.gamma), stairs});
  } else if (s.kind != ScheduleKind::kConstant) {
    const std::string falls = b_.add1("Mul", {number(1 - s.min_lr_ratio), decay(progress())});
    after = b_.add1("Add", {number(s.min_lr_ratio), falls});
  }
  if (s.warmup_steps == 0) return after;
  const std::string steps = s.kind == ScheduleKind::kLinear ? at : b_.add1("Add", {at, number(1)});
  const std::string rises = b_.add1("Div", {steps, number(warmup)});
  return b_.add1("Where", {b_.add1("Less", {at, number(warmup)}), rises, after});
}

std::string AlgorithmRate::progress() {
  const int64_t warmup = options_.schedule.warmup_steps, span = total_of(options_) - warmup;
  if (span <= 0) return number(1);
  const std::string behind = b_.add1("Sub", {exact_count(), number(static_cast<double>(warmup))});
  const std::string p = b_.add1("Div", {behind, number(static_cast<double>(span))});
  const std::string least = b_.add1("Max", {p, number(0)});  // in the warm-up nobody asks
  return b_.add1("Min", {least, number(1)});
}

std::string AlgorithmRate::decay(const std::string& p) {
  const ScheduleOptions& s = options_.schedule;
  if (s.kind == ScheduleKind::kCosine) {
    const std::string turn = b_.add1("Cos", {b_.add1("Mul", {p, number(std::numbers::pi)})});
    return b_.add1("Mul", {b_.add1("Add", {turn, number(1)}), number(0.5)});
  }
  const std::string left = b_.add1("Sub", {number(1), p});
  if (s.kind == ScheduleKind::kLinear) return left;
  return b_.add1("Pow", {left, number(s.power)});
}

void AlgorithmRate::finish() {
  if (!count_.empty()) b_.bind(count_, next_count(), {DType::kInt64, Shape{}});
}

}  // namespace ofsdp::runtime

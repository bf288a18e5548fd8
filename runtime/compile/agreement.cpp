#include <algorithm>
#include <array>

#include "runtime/compile/compile.h"

namespace ofsdp::runtime {
namespace {

// The 53 bits of a double hold unit size, unit and kind.
constexpr int64_t kKinds = 32, kUnits = 8192, kSizes = int64_t{1} << 35;
constexpr double kNoStep = -1;

}  // namespace

double step_code(const Step& step, const Plan& plan) {
  const bool of_unit = step.index >= 0 && traits(step.kind).subject == StepSubject::kUnit;
  const int64_t size =
      !of_unit ? 0 : plan.units[static_cast<size_t>(step.index)].padded_numel % kSizes;
  const int64_t unit = (step.index + 1) % kUnits;
  return static_cast<double>((size * kUnits + unit) * kKinds + static_cast<int64_t>(step.kind));
}

std::string step_code_text(double code) {
  if (code == kNoStep) return "nothing more";
  const auto bits = static_cast<int64_t>(code);
  const int64_t unit = bits / kKinds % kUnits - 1;
  const auto kind = static_cast<StepKind>(bits % kKinds);
  const char* name = step_name(kind);
  if (unit < 0) return name;
  if (traits(kind).subject == StepSubject::kNode) return format_text("{} n{}", name, unit);
  return format_text("{} u{} of {} elements", name, unit, bits / kKinds / kUnits);
}

std::vector<double> step_codes(const CompiledRun& plan) {
  std::vector<double> codes;
  for (const auto& [key, program] : plan.programs) {
    if (key.batch != plan.train_sampler->options().batch_size) continue;
    for (const Step& step : program.schedule.steps) {
      if (communicates(step)) codes.push_back(step_code(step, plan.shards));
    }
  }
  return codes;
}

// Exchanges blocks of equal size, since ranks may have different step counts.
Status first_difference(const CompiledRun& plan, Communicator& communicator) {
  const auto codes = step_codes(plan);
  const auto ranks = static_cast<size_t>(communicator.size());
  std::vector<double> all(ranks * kMaxExchange);
  for (size_t begin = 0;; begin += kMaxExchange) {
    std::array<double, kMaxExchange> mine;
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i] = begin + i < codes.size() ? codes[begin + i] : kNoStep;
    }
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, {"schedule comparison", -1, 0}));
    for (size_t i = 0; i < mine.size(); ++i) {
      for (size_t r = 1; r < ranks; ++r) {
        const double first = all[i], other = all[r * kMaxExchange + i];
        if (first == other) continue;
        return fault(
            "the schedules of ranks 0 and {} differ, first in collective step {}: {} on rank 0, {} "
            "on rank {}; are options and files the same?",
            r, begin + i, step_code_text(first), step_code_text(other), r);
      }
    }
    if (std::ranges::all_of(all, [](double code) { return code == kNoStep; })) break;
  }
  return fault("the ranks have compiled different schedules; are options and files the same?");
}

}  // namespace ofsdp::runtime

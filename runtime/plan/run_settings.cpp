#include "runtime/plan/run_settings.h"

namespace ofsdp::runtime {

RunSettings resolve_settings(const Options& options, const ModelOrigin& origin,
                             const ModelSetup& setup, const std::string& configuration) {
  return {.options = options,
          .batch = setup.batch,
          .start = {},
          .configuration = configuration,
          .transformers_adamw = origin.transformers_adamw,
          .bias_correction = origin.bias_correction,
          .optimizer_steps = setup.source->steps_done(),
          .evaluated = {},
          .given = {}};
}

TrainedState trained_state(const RunSettings& settings, int64_t updates) {
  const OptimizerOptions& o = settings.options.optimizer;
  return {.step = settings.optimizer_steps + updates,
          .learning_rate = static_cast<float>(o.lr),
          .states = o.kind == OptimizerKind::kSgd ? size_t{1} : size_t{2}};
}

bool falls_due(const Interval& interval, const Sampler& sampler, int64_t step) {
  if (interval.unit == StepUnit::kStep) return step % interval.count == 0;
  return sampler.ends_epochs(step, interval.count);
}

}  // namespace ofsdp::runtime

#include "runtime/plan/predict/prediction.h"

namespace ofsdp::runtime {

int64_t times_an_update(const ProgramKey& key, const BatchSizes& batch) {
  if (!key.training || key.batch != batch.batch_size) return 0;
  const bool middle = !key.first_micro && !key.last_micro;
  return middle ? batch.grad_accum - 2 : 1;
}

Simulation simulate_program(const RunPlan& run, const ProgramPlan& program,
                            const Machine& machine) {
  SimulationOptions how;
  if (machine.topology) how = {machine.topology->overlap, machine.topology->contention};
  return simulate(program.graph, run.plan, program.schedule, run.slots,
                  step_costs(run, program, machine), how);
}

double predicted_seconds(const RunPlan& run, const Machine& machine, const BatchSizes& batch) {
  double seconds = 0;
  for (const auto& [key, program] : run.programs) {
    const auto times = static_cast<double>(times_an_update(key, batch));
    if (times > 0) seconds += times * simulate_program(run, program, machine).seconds;
  }
  return seconds;
}

}  // namespace ofsdp::runtime

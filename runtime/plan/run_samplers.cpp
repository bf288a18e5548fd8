#include "runtime/plan/run_samplers.h"

namespace ofsdp::runtime {
namespace {

// A graph with a fixed batch axis cannot take a short last batch.
Status check_fixed_batch(const Graph& graph, const RunPlan& plan) {
  const int64_t fixed = fixed_batch(graph);
  if (fixed < 0) return {};
  auto check = [&](const Sampler& sampler, const char* what) -> Status {
    for (int64_t size : sampler.micro_batch_sizes_of_all_ranks()) {
      if (size == 0 || size == fixed) continue;
      return input_error(
          "{}: {} samples in batches of {} leave one of {}, but the batch axis of {} is fixed "
          "at {} (--drop-last leaves it out)",
          what, sampler.options().samples, fixed, size, graph.file, fixed);
    }
    return {};
  };
  OFSDP_RETURN_IF_ERROR(check(plan.train_sampler[0], "training data"));
  return plan.eval_sampler.empty() ? Status{} : check(plan.eval_sampler[0], "evaluation data");
}

}  // namespace

Status settle_samplers(const Options& options, const ModelSetup& setup,
                       const Communicator& communicator, RunPlan& plan) {
  const RunOptions& run = options.run;
  const int world = communicator.size(), rank = communicator.rank();
  const int64_t samples = setup.data.train ? setup.data.train->samples() : kEndless;
  OFSDP_ASSIGN_OR_RETURN(
      Sampler sampler,
      Sampler::make({samples, run.seed, run.shuffle, run.drop_last, options.batch.batch_size,
                     options.batch.grad_accum, world, rank, run.start, options.batch.slices,
                     options.batch.global_batch_size}));
  plan.train_sampler.push_back(std::move(sampler));
  if (setup.data.eval) {
    OFSDP_ASSIGN_OR_RETURN(Sampler evaluation,
                           Sampler::make_evaluation(setup.data.eval->samples(),
                                                    options.batch.batch_size, world, rank));
    plan.eval_sampler.push_back(std::move(evaluation));
  }
  return check_fixed_batch(setup.graph, plan);
}

}  // namespace ofsdp::runtime

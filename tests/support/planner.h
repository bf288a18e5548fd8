// Planner: plans a model and ranks that do not exist, in this process and without measuring
// anything: by given options, or by compile_run with its choices.
//
// Errors: OFSDP_CHECK, as nothing here should fail.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/compile/compile.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

// Options for a step on synthetic data.
inline Options plan_options(const std::string& model, LossKind loss, int64_t batch) {
  Options options;
  options.command = Command::kPlan;
  options.model = model;
  options.losses[0].kind = loss;
  options.run.data.kind = DataChoice::Kind::kSynthetic;
  options.run.epochs.reset();
  options.run.steps = 1;
  options.batch.batch_size.value = batch;
  return options;
}

class Planner {
 public:
  // `topology`: YAML, or empty for ranks on one host with memory in common.
  Planner(const Options& options, int world, const std::string& topology = "", int hosts = 1)
      : communicator_(make_absent_ranks(world, hosts, topology.empty())), options_(options) {
    if (!topology.empty()) options_.report.topology = folder_.write("t.yaml", topology);
    auto device = choose_device(options_, registry_, *communicator_);
    OFSDP_CHECK(device.ok(), "{}", device.error().message());
    device_ = std::move(device->device);
    kernels_ = std::make_shared<KernelCache>(device_.get());
    auto setup = ModelSetup::make(options_, {}, registry_, *communicator_, ledger_);
    OFSDP_CHECK(setup.ok(), "{}", setup.error().message());
    setup_ = std::make_unique<ModelSetup>(*std::move(setup));
  }

  const Options& options() const { return options_; }

  RunSettings settings(const ShardingOptions& sharding) const {
    RunSettings made = resolve_settings(options_, {}, *setup_, "");
    made.options.sharding = sharding;
    return made;
  }

  std::unique_ptr<CompiledRun> compile(const ShardingOptions& sharding) {
    const CandidateParts parts{*setup_, *communicator_, optimizers_, kernels_};
    auto plan = compile_candidate(settings(sharding), parts);
    OFSDP_CHECK(plan.ok(), "{}", plan.error().message());
    return *std::move(plan);
  }

  Result<std::unique_ptr<CompiledRun>> choose(const ShardingOptions& sharding) {
    return compile_run(settings(sharding), *setup_, *communicator_, optimizers_, device_.get());
  }

 private:
  const testing_data::TempFolder folder_;
  Registry registry_ = make_registry();
  std::vector<OptimizerDef> optimizers_ = optimizer_list();
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<KernelCache> kernels_;
  Options options_;
  std::unique_ptr<ModelSetup> setup_;
};

}  // namespace ofsdp

// plan_file: all steps of `fsdp-run plan MODEL --data synthetic` before it prints, in this process:
// import, loss, specialization, backward, units, kernels, memory.
//
// Threads: one. Errors: as in the steps.
#pragma once

#include <memory>
#include <string>

#include "fsdp/comm/communicator.h"
#include "kernels/core/op_def.h"
#include "kernels/core/optimizer.h"
#include "runtime/compile/compile.h"
#include "runtime/train/setup/model_setup.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

inline Status plan_file(const std::string& path, const Registry& registry,
                        LossKind loss = LossKind::kAuto) {
  Options options;
  options.model = path;
  options.losses[0].kind = loss;
  options.run.data.kind = DataChoice::Kind::kSynthetic;
  options.run.epochs.reset();
  options.run.steps = 1;
  options.batch.batch_size.value = 2;
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  const auto optimizers = optimizer_list();
  OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup,
                         ModelSetup::make(options, {}, registry, *communicator, ledger));
  const RunSettings settings = resolve_settings(options, {}, setup, "");
  return compile_run(settings, setup, *communicator, optimizers).status();
}

}  // namespace ofsdp::testing

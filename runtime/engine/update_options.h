// The options of the command line that decide the update of each parameter.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/names.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/stored_state.h"

namespace ofsdp::runtime {

enum class OptimizerKind {
#define OPTIMIZER(name, Update, ...) k##Update,
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
  kPlugin  // which has a name of its own
};
constexpr auto enum_names(OptimizerKind) {
  return std::to_array<EnumName<OptimizerKind>>({
#define OPTIMIZER(name, Update, ...) {OptimizerKind::k##Update, #name},
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
  });
}

enum class MuonAdjust { kOriginal, kMatchRmsAdamw };  // of rates to a matrix's shape
OFSDP_ENUM_NAMES(MuonAdjust, {kOriginal, "original"}, {kMatchRmsAdamw, "match_rms_adamw"})

// Every member is final: an option that was not given has the default of `kind`, as in PyTorch.
struct UpdateOptions : OptimizerSettings {
  UpdateOptions() { weight_decay = 1e-2; }  // adamw's

  OptimizerKind kind = OptimizerKind::kAdamW;
  std::string plugin;  // kPlugin: its name
  double lr = 1e-3;
};

// --group: what the parameters that `pattern` matches have of their own.
struct GroupOptions {
  std::string said;  // PATTERN:key=value[,key=value]
  std::string pattern;
  std::optional<OptimizerKind> kind;  // none: the run's, like the next two
  std::string plugin;                 // kPlugin: its name
  std::optional<double> lr;
  bool lr_is_share = false;  // of the run's
  std::optional<double> weight_decay;
  UpdateOptions update;  // of these and the run's
};

struct OptimizerOptions : UpdateOptions {
  MuonAdjust muon_adjust = MuonAdjust::kOriginal;
  bool no_decay_auto = false;
  std::vector<std::string> no_decay;
  std::vector<GroupOptions> groups;
  StateDType state_dtype = StateDType::kFloat32;
  std::optional<double> ema;  // off
  bool ema_use = true;
  std::optional<double> clip_grad_norm;  // off
};

}  // namespace ofsdp::runtime

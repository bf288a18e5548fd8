// The command-line options that decide how each parameter is updated: --optimizer and its settings,
// --group, --no-decay, --ema and so on. The option parser fills them; run_optimizer.cpp reads them.
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
  kPlugin  // from --plugin; UpdateOptions::plugin has the name
};
constexpr auto enum_names(OptimizerKind) {
  return std::to_array<EnumName<OptimizerKind>>({
#define OPTIMIZER(name, Update, ...) {OptimizerKind::k##Update, #name},
#define VARIANT(...)
#include "kernels/optimizers/optimizers.inc"
  });
}

// How Muon adapts the learning rate to a matrix's shape (--muon-adjust).
enum class MuonAdjust { kOriginal, kMatchRmsAdamw };
OFSDP_ENUM_NAMES(MuonAdjust, {kOriginal, "original"}, {kMatchRmsAdamw, "match_rms_adamw"})

// Every member is final: an option that was not given has the default of `kind`, as in PyTorch.
struct UpdateOptions : OptimizerSettings {
  UpdateOptions() { weight_decay = 1e-2; }  // adamw's

  OptimizerKind kind = OptimizerKind::kAdamW;
  std::string plugin;  // kPlugin: the optimizer's name
  double lr = 1e-3;
};

// --group PATTERN:key=value,...: settings for the parameters that PATTERN matches. Settings that
// are not given here are the run's.
struct GroupOptions {
  std::string said;  // the option's text, for messages
  std::string pattern;
  std::optional<OptimizerKind> kind;   // none: the run's
  std::string plugin;                  // kPlugin: the optimizer's name
  std::optional<double> lr;            // none: the run's
  bool lr_is_share = false;            // `lr` is a factor on the run's
  std::optional<double> weight_decay;  // none: the run's
  UpdateOptions update;                // the resulting settings
};

struct OptimizerOptions : UpdateOptions {
  MuonAdjust muon_adjust = MuonAdjust::kOriginal;
  bool no_decay_auto = false;
  std::vector<std::string> no_decay;
  std::vector<GroupOptions> groups;
  StateDType state_dtype = StateDType::kFloat32;
  std::optional<double> ema;  // decay; none: no average
  bool ema_use = true;
  std::optional<double> clip_grad_norm;  // none: gradients are not clipped
};

}  // namespace ofsdp::runtime

#include "runtime/state/settings_changes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <sstream>
#include <vector>

#include "kernels/base/escaped.h"
#include "kernels/base/status.h"

namespace ofsdp::runtime {
namespace {

// Words in the order of the command line's tables: sharding, loss, trained tensors, optimizer,
// schedule, edits, batch.
constexpr const char* kKeys =
    "param_dtype reduce_dtype buffer_dtype matmul_precision "
    "loss loss_mean prediction labels ignore_index label_smoothing teacher distill_weight "
    "distill_temperature batch_axis nhwc_weights "
    "freeze train sync_batch_norm qat_scales training_info initialize "
    "optimizer lr weight_decay momentum nesterov betas eps rho state_dtype no_decay group ema "
    "ema_use clip_grad_norm muon_adjust "
    "lr_schedule warmup_steps total_steps min_lr_ratio power step_size milestones gamma "
    "schedule_unit decay_steps restart_steps restart_mult pct_start div_factor "
    "final_div_factor "
    "lora lora_rank lora_alpha lora_dropout lora_from replace_head untie "
    "global_batch_size";
constexpr std::array kFollowTheLength =
    std::to_array<std::string_view>({"linear", "cosine", "polynomial", "wsd", "onecycle"});

std::vector<std::string> keys_that_change_weights() {
  std::istringstream words(kKeys);
  return {std::istream_iterator<std::string>(words), {}};
}

using Values = std::map<std::string, std::string>;

// Takes the lines "key: value"; a comment ends a value.
Values values_in(const std::string& yaml) {
  Values values;
  for (size_t begin = 0; begin < yaml.size();) {
    const size_t end = std::min(yaml.find('\n', begin), yaml.size());
    const std::string line = yaml.substr(begin, end - begin);
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && line[0] != ' ' && line[0] != '#') {
      std::string value = line.substr(colon + 2);
      if (!value.starts_with('"')) value = value.substr(0, value.find("  #"));
      values[line.substr(0, colon)] = value;
    }
    begin = end + 1;
  }
  return values;
}

bool schedule_follows_length(const Values& values) {
  const auto kind = values.find("lr_schedule"), total = values.find("total_steps");
  if (kind == values.end() || std::ranges::count(kFollowTheLength, kind->second) == 0) return false;
  const bool given = total != values.end() && total->second.find_first_of("0123456789") == 0;
  return !given;
}

}  // namespace

bool changes_weights(std::string_view key) {
  return std::ranges::count(keys_that_change_weights(), key) > 0;
}

std::string changed_settings_line(const std::string& saved, const std::string& present) {
  const Values before = values_in(saved), now = values_in(present);
  std::vector<std::string> changes;
  const auto compare = [&](const std::string& key, const char* why) {
    const auto old = before.find(key), other = now.find(key);
    if (old == before.end() || other == now.end() || old->second == other->second) return;
    changes.push_back(format_text("{} {} (was {}{})", key, other->second, old->second, why));
  };
  for (const std::string& key : keys_that_change_weights()) compare(key, "");
  if (schedule_follows_length(now)) {
    compare("steps", "; lr_schedule follows it");
    compare("epochs", "; lr_schedule follows it");
  }
  return escaped(joined(changes, ", "));
}

}  // namespace ofsdp::runtime

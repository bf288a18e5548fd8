// The options about the learning rate's schedule.
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

OptionEntry milestones() {
  OptionEntry entry{.name = "milestones",
                    .values = "N,N,...",
                    .help = "multistep: epochs or steps at which the rate changes"};
  entry.set = [](Options& o, const std::string& text) {
    o.schedule.milestones.clear();
    for (const std::string& part : split_list(text)) {
      const auto at = parse_integer(part, 0);
      if (!at) return fine_or(false, "whole numbers of at least 0, such as 30,60");
      o.schedule.milestones.push_back(*at);
    }
    return Verdict{};
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> texts;
    for (const int64_t at : o.schedule.milestones) texts.push_back(std::to_string(at));
    return "[" + joined(texts, ", ") + "]";
  };
  return entry;
}

}  // namespace

std::vector<OptionEntry> schedule_entries() {
  using namespace entries;
  return {
      choice("lr-schedule", "how the learning rate changes", OFSDP_FIELD(schedule.kind)),
      integer({"warmup-steps", "0", "updates on the way up to the learning rate"}, 0,
              OFSDP_FIELD(schedule.warmup_steps)),
      integer_or("auto", {"total-steps", "auto (the run's), N", "updates the schedule is made for"},
                 1, OFSDP_FIELD(schedule.total_steps)),
      number({"min-lr-ratio", "0",
              "linear, cosine, polynomial, wsd, cosine_restarts: the least "
              "rate over lr"},
             kZeroToOne, OFSDP_FIELD(schedule.min_lr_ratio)),
      number({"power", "1", "polynomial"}, kAtLeastZero, OFSDP_FIELD(schedule.power)),
      integer({"step-size", "1", "step: epochs or steps between two changes"}, 1,
              OFSDP_FIELD(schedule.step_size)),
      number({"gamma", "0.1", "step, multistep, exponential: factor of a change"}, kAtLeastZero,
             OFSDP_FIELD(schedule.gamma)),
      choice("schedule-unit", "step, multistep, exponential: what is counted",
             OFSDP_FIELD(schedule.unit)),
      milestones(),
      integer_or("auto",
                 {"decay-steps", "auto (a tenth of the total), N", "wsd: updates of the decay"}, 1,
                 OFSDP_FIELD(schedule.decay_steps)),
      integer_or("none",
                 {"restart-steps", "none, N", "cosine_restarts: updates of the first cycle"}, 1,
                 OFSDP_FIELD(schedule.restart_steps)),
      integer({"restart-mult", "1", "cosine_restarts: length of a cycle over that of the last"}, 1,
              OFSDP_FIELD(schedule.restart_mult)),
      number({"pct-start", "0.3", "onecycle: share of the updates on the way up"}, kZeroToOne,
             OFSDP_FIELD(schedule.pct_start)),
      number({"div-factor", "25", "onecycle: lr over the first rate"}, kAboveZero,
             OFSDP_FIELD(schedule.div_factor)),
      number({"final-div-factor", "1e4", "onecycle: the first rate over the last"}, kAboveZero,
             OFSDP_FIELD(schedule.final_div_factor)),
  };
}

}  // namespace ofsdp::cli

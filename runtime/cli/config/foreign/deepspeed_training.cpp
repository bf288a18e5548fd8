#include "runtime/cli/config/foreign/deepspeed_training.h"

#include <map>

#include "kernels/core/optimizer.h"

namespace ofsdp::cli {
namespace {

Status nothing(const ForeignKey&) { return ok_status(); }

// A parameter that computes something else unless it has this value.
KeyRule only(std::string_view name, std::string value) {
  return {name, [value = std::move(value)](const ForeignKey& key) -> Status {
            const auto number = parse_number(value);
            const auto found =
                key.value.IsScalar() ? parse_number(key.value.Scalar()) : std::optional<double>();
            const bool same = key.automatic() || key.is(value) || (number && found == number);
            return same ? ok_status()
                        : input_error("{}: not offered here: expected {}, found '{}'", key.subject,
                                      value, key.value.IsScalar() ? key.value.Scalar() : "...");
          }};
}

KeyRule keep(std::string_view name, std::optional<ForeignKey>& at) {
  return {name, [&at](const ForeignKey& key) {
            if (!key.automatic()) at = key;
            return ok_status();
          }};
}

// `type` and `params` of a section.
struct TypedSection {
  std::optional<ForeignKey> type, params;

  Status read(ForeignFile& file, const ForeignKey& key) {
    std::vector<KeyRule> rules = {
        keep("type", type), keep("params", params), {"legacy_fusion", {}}};
    OFSDP_RETURN_IF_ERROR(file.read_section(key, rules));
    if (!type && params) return expected(key, "a type beside params");
    return ok_status();
  }
};

class Training {
 public:
  explicit Training(ForeignFile& file) : file_(file) {}

  Status read(const std::optional<ForeignKey>& optimizer,
              const std::optional<ForeignKey>& scheduler) {
    if (optimizer) OFSDP_RETURN_IF_ERROR(read_optimizer(*optimizer));
    if (scheduler) OFSDP_RETURN_IF_ERROR(read_scheduler(*scheduler));
    return settle_rate();
  }

 private:
  KeyRule option(std::string_view name, std::string option) {
    return {name, [this, option = std::move(option)](const ForeignKey& key) -> Status {
              if (key.automatic()) return ok_status();
              OFSDP_ASSIGN_OR_RETURN(const std::string text, text_of(key));
              return file_.set(option, text, key);
            }};
  }

  KeyRule betas() {
    return {"betas", [this](const ForeignKey& key) -> Status {
              if (key.automatic()) return ok_status();
              if (!key.value.IsSequence() || key.value.size() != 2) {
                return expected(key, "a list of two numbers");
              }
              return file_.set("betas", key.value[0].Scalar() + "," + key.value[1].Scalar(), key);
            }};
  }

  Status read_optimizer(const ForeignKey& key) {
    TypedSection section;
    OFSDP_RETURN_IF_ERROR(section.read(file_, key));
    if (!section.type) return ok_status();
    std::map<int, const OptimizerDef*> known;  // by place
    const std::vector<OptimizerDef> optimizers = optimizer_list();
    for (const OptimizerDef& optimizer : optimizers) {
      const DeepSpeedType& type = optimizer.traits.deepspeed;
      if (type.name != nullptr) known[type.place] = &optimizer;
    }
    std::vector<std::string> types, names;
    for (const auto& [place, optimizer] : known) {
      types.emplace_back(optimizer->traits.deepspeed.name);
      names.push_back(optimizer->name);
    }
    OFSDP_ASSIGN_OR_RETURN(const size_t which, choice_of(*section.type, types));
    if (section.params) {
      OFSDP_RETURN_IF_ERROR(file_.read_section(*section.params, parameters()));
    }
    std::string name = names[which];
    if (name == "adam") {
      OFSDP_ASSIGN_OR_RETURN(name, kind_of_adam());
    }
    return file_.set("optimizer", name, *section.type);
  }

  std::vector<KeyRule> parameters() {
    return {keep("lr", lr_),
            betas(),
            option("eps", "eps"),
            keep("weight_decay", decay_),
            option("momentum", "momentum"),
            option("nesterov", "nesterov"),
            option("rho", "rho"),
            keep("adam_w_mode", adam_w_mode_),
            {"torch_adam", {}},
            {"fp32_optimizer_states", {}},
            {"fused", {}},
            {"foreach", {}},
            only("bias_correction", "true"),
            only("amsgrad", "false"),
            only("maximize", "false"),
            only("dampening", "0"),
            only("lr_decay", "0"),
            only("initial_accumulator_value", "0"),
            only("eps_inside_sqrt", "false"),
            refused("max_coeff", "the trust ratio has no bounds here"),
            refused("min_coeff", "the trust ratio has no bounds here"),
            refused("max_grad_norm", "gradient_clipping says it")};
  }

  static KeyRule refused(std::string_view name, std::string why) {
    return {name, [why = std::move(why)](const ForeignKey& key) -> Status {
              return input_error("{}: {}", key.subject, why);
            }};
  }

  // DeepSpeed's Adam decays as AdamW does unless adam_w_mode is false.
  Result<std::string> kind_of_adam() {
    bool decoupled = true;
    if (adam_w_mode_) {
      OFSDP_ASSIGN_OR_RETURN(decoupled, switch_of(*adam_w_mode_));
    }
    if (!decay_) return std::string("adam");  // without decay they are one
    OFSDP_ASSIGN_OR_RETURN(const double decay, number_of(*decay_));
    return std::string(decoupled && decay > 0 ? "adamw" : "adam");
  }

  Status read_scheduler(const ForeignKey& key) {
    TypedSection section;
    OFSDP_RETURN_IF_ERROR(section.read(file_, key));
    if (!section.type) return ok_status();
    if (section.type->is("OneCycle") || section.type->is("LRRangeTest")) {
      return input_error(
          "{}: {} has no equal here: expected WarmupLR, WarmupDecayLR or "
          "WarmupCosineLR",
          section.type->subject, section.type->value.Scalar());
    }
    OFSDP_ASSIGN_OR_RETURN(
        const size_t which,
        choice_of(*section.type, {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}));
    if (section.params) {
      OFSDP_RETURN_IF_ERROR(file_.read_section(*section.params, schedule_rules(which == 2)));
    }
    OFSDP_RETURN_IF_ERROR(
        file_.set("lr-schedule", which == 2 ? "cosine" : "linear", *section.type));
    if (which == 0) OFSDP_RETURN_IF_ERROR(file_.set("min-lr-ratio", "1", *section.type));
    OFSDP_RETURN_IF_ERROR(settle_warmup(which == 2));
    if (total_) {
      OFSDP_ASSIGN_OR_RETURN(const int64_t total, count_of(*total_, 1));
      OFSDP_RETURN_IF_ERROR(file_.set("total-steps", format_text("{}", total), *total_));
    }
    return ok_status();
  }

  std::vector<KeyRule> schedule_rules(bool cosine) {
    std::vector<KeyRule> rules = {keep("warmup_num_steps", warmup_), keep("warmup_type", type_),
                                  keep("total_num_steps", total_)};
    if (cosine) {
      rules.push_back(option("cos_min_ratio", "min-lr-ratio"));
      rules.push_back(only("warmup_min_ratio", "0"));
    } else {
      rules.push_back(only("warmup_min_lr", "0"));
      rules.push_back(keep("warmup_max_lr", most_));
    }
    rules.push_back({"last_batch_iteration", nothing});
    return rules;
  }

  // See [Note: DeepSpeed's schedules].
  Status settle_warmup(bool cosine) {
    if (!warmup_) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(const int64_t steps, count_of(*warmup_, 0));
    if (steps > 0 && cosine) {
      return input_error(
          "{}: the warm-up of WarmupCosineLR begins at 0, that of cosine at lr/{}: "
          "expected auto or 0, found {}",
          warmup_->subject, steps, steps);
    }
    if (steps > 0 && (!type_ || !type_->is("linear"))) {
      return input_error(
          "{}: a logarithmic warm-up (DeepSpeed's default) has no equal here: "
          "expected warmup_type: linear beside it",
          type_ ? type_->subject : warmup_->subject);
    }
    return file_.set("warmup-steps", format_text("{}", steps), *warmup_);
  }

  // The rate of optimizer and scheduler is one.
  Status settle_rate() {
    if (lr_) OFSDP_RETURN_IF_ERROR(set_number("lr", *lr_));
    if (decay_) OFSDP_RETURN_IF_ERROR(set_number("weight-decay", *decay_));
    return most_ ? set_number("lr", *most_) : ok_status();
  }

  Status set_number(const std::string& name, const ForeignKey& key) {
    OFSDP_ASSIGN_OR_RETURN(const std::string text, text_of(key));
    return file_.set(name, text, key);
  }

  ForeignFile& file_;
  std::optional<ForeignKey> lr_, decay_, adam_w_mode_, warmup_, type_, total_, most_;
};

}  // namespace

Status read_deepspeed_training(ForeignFile& file, const std::optional<ForeignKey>& optimizer,
                               const std::optional<ForeignKey>& scheduler) {
  return Training(file).read(optimizer, scheduler);
}

}  // namespace ofsdp::cli

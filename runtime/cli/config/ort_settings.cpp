#include "runtime/cli/config/ort_settings.h"

#include <filesystem>

namespace ofsdp::cli {
namespace {

const char* optimizer_option(const OrtOptimizer& optimizer) {
  return optimizer.kind == OrtOptimizer::Kind::kSgd ? "sgd" : "adamw";
}

// As a person would write it: 0.9 for the float next to it.
std::string number(float value) { return format_text("{}", value); }

Status say_optimizer(const OrtSettings& settings, OptionReader& reader) {
  const OrtOptimizer& o = *settings.optimizer;
  const std::string& subject = settings.paths.optimizer;
  const auto say = [&](const char* name, const std::string& text) {
    return reader.read(name, text, Source::kModelYaml, subject + ": " + name);
  };
  OFSDP_RETURN_IF_ERROR(say("optimizer", optimizer_option(o)));
  if (o.clip_norm) OFSDP_RETURN_IF_ERROR(say("clip-grad-norm", number(*o.clip_norm)));
  if (o.kind == OrtOptimizer::Kind::kSgd) return ok_status();
  OFSDP_RETURN_IF_ERROR(say("betas", number(o.beta1) + "," + number(o.beta2)));
  OFSDP_RETURN_IF_ERROR(say("eps", number(o.eps)));
  return say("weight-decay", number(o.weight_decay));
}

}  // namespace

Result<OrtSettings> read_ort_settings(const std::string& folder, OptionReader& reader) {
  OrtSettings settings{folder, {}, {}};
  OFSDP_ASSIGN_OR_RETURN(settings.paths, ort_paths(folder));
  OFSDP_ASSIGN_OR_RETURN(const OrtCheckpoint checkpoint,
                         open_ort_checkpoint(settings.paths.checkpoint));
  if (checkpoint.optimizer) {
    OFSDP_RETURN_IF_ERROR(reader.read("lr", number(checkpoint.optimizer->learning_rate),
                                      Source::kModelYaml, settings.paths.checkpoint + ": lr"));
  }
  if (settings.paths.optimizer.empty()) return settings;
  OFSDP_ASSIGN_OR_RETURN(settings.optimizer, read_ort_optimizer(settings.paths.optimizer));
  OFSDP_RETURN_IF_ERROR(say_optimizer(settings, reader));
  return settings;
}

Status check_ort_optimizer(const OrtSettings& settings, const OptionReader& reader) {
  if (!settings.optimizer) return ok_status();
  const bool sgd = settings.optimizer->kind == OrtOptimizer::Kind::kSgd;
  if (reader.optimizer() == (sgd ? OptimizerKind::kSgd : OptimizerKind::kAdamW)) return ok_status();
  return input_error(
      "--optimizer: {} has {}: expected that or nothing (--lr and the like may change its numbers)",
      settings.paths.optimizer, optimizer_option(*settings.optimizer));
}

Status check_ort_options(const OrtSettings& settings, const Options& options) {
  const auto refuse = [&](const char* flag, const char* why) {
    return input_error("{} has no place with the training artifacts in {}: {}", flag,
                       settings.folder, why);
  };
  if (options.loss.kind != LossKind::kAuto)
    return refuse("--loss", "their gradients are those of their own loss");
  if (!options.train.empty() || !options.freeze.empty()) {
    return refuse(options.train.empty() ? "--freeze" : "--train",
                  "what is trained was chosen when they were made (requires_grad)");
  }
  if (options.sharding.param_dtype != DType::kFloat32) {
    return refuse("--param-dtype", "their backward computes in float32");
  }
  if (options.checkpoint.type == CheckpointType::kFull) {
    return refuse("--checkpoint-type full", "--output writes a folder of artifacts");
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(options.checkpoint.resume, error)) {
    return refuse("--resume FILE", "expected a checkpoint folder or latest");
  }
  return ok_status();
}

}  // namespace ofsdp::cli

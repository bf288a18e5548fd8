#include "runtime/cli/config/config_files.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "kernels/base/text.h"
#include "runtime/cli/config/foreign/foreign_file.h"
#include "runtime/cli/options/option_table.h"
#include "runtime/remote/address.h"
#include "runtime/remote/cache.h"

namespace ofsdp::cli {

namespace {

class ConfigFile {
 public:
  ConfigFile(const std::string& path, Source source, OptionReader& reader)
      : path_(path),
        folder_(std::filesystem::path(path).parent_path()),
        source_(source),
        reader_(reader),
        accelerate_(path, "Accelerate", source, reader) {}

  Status read(const YAML::Node& root) {
    if (root.IsNull()) return ok_status();
    if (!root.IsMap()) return input_error("{}: expected a mapping of options", path_);
    OFSDP_RETURN_IF_ERROR(check_environment(root));
    for (const auto& pair : root) {
      OFSDP_RETURN_IF_ERROR(read_key(pair.first, pair.second));
    }
    return accelerate_keys_.empty() ? ok_status() : read_accelerate(accelerate_, accelerate_keys_);
  }

 private:
  // Accelerate's files for another environment have other keys; reports the environment, not the
  // first such key.
  Status check_environment(const YAML::Node& root) const {
    const YAML::Node where = root["compute_environment"];
    if (!where || !where.IsScalar() || where.Scalar() == "LOCAL_MACHINE") return ok_status();
    return input_error("{} line {}: compute_environment: expected LOCAL_MACHINE, found '{}'", path_,
                       where.Mark().line + 1, where.Scalar());
  }

  Status read_key(const YAML::Node& key_node, const YAML::Node& value) {
    const std::string at = format_text("{} line {}", path_, key_node.Mark().line + 1);
    if (!key_node.IsScalar()) return input_error("{}: expected the name of an option", at);
    const std::string key = key_node.Scalar();
    const std::string subject = format_text("{}: {}", at, key);
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    const OptionEntry* entry = find_key(reader_.table(), name);
    const bool foreign = entry == nullptr && is_accelerate_key(key);
    const OptionSynonym* const other = entry == nullptr && !foreign ? find_synonym(name) : nullptr;
    const bool known = entry != nullptr || foreign || other != nullptr || name == "no-shuffle";
    if (!known) return unknown_key(key, at);
    if (!seen_.insert(name).second) return input_error("{}: the key stands here twice", subject);
    if (value.IsNull()) return ok_status();
    if (foreign) {
      accelerate_keys_.push_back(accelerate_.key(key_node, value, ""));
      return ok_status();
    }
    if (value.IsMap()) return read_mapping(name, value, subject);
    if (other != nullptr) return read_other_name(*other, value, subject);
    if (entry == nullptr) return reader_.read(name, value.Scalar(), source_, subject);
    return read_value(*entry, value, subject);
  }

  // `learning_rate: 0.1` or `bf16: true`; `bf16: false` says nothing.
  Status read_other_name(const OptionSynonym& other, const YAML::Node& value,
                         const std::string& subject) {
    const OptionEntry& entry = *find_key(reader_.table(), other.option);
    if (other.value.empty() || !value.IsScalar()) return read_value(entry, value, subject);
    const std::optional<bool> on = parse_switch(value.Scalar());
    if (!on) return input_error("{}: expected on or off, found '{}'", subject, value.Scalar());
    if (!*on) return ok_status();
    return reader_.read(entry.name, std::string(other.value), source_, subject);
  }

  Status unknown_key(const std::string& key, const std::string& at) const {
    const std::string log = log_hint(key);
    if (!log.empty()) return input_error("{}: unknown key '{}'{}", at, key, log);
    std::vector<std::string> names;
    for (const std::string& name : entry_names(reader_.table())) names.push_back(yaml_key(name));
    for (const OptionSynonym& other : option_synonyms()) {
      names.push_back(yaml_key(std::string(other.name)));
    }
    for (std::string& name : accelerate_key_names()) names.push_back(std::move(name));
    return input_error("{}: unknown key '{}'{}", at, key, name_hint(key, names));
  }

  Status read_mapping(const std::string& name, const YAML::Node& value,
                      const std::string& subject) {
    if (name != "data") return input_error("{}: expected a value, found a mapping", subject);
    const std::string yaml = YAML::Dump(value);
    OFSDP_REJECT_IF(
        source_ == Source::kModelYaml && yaml.find("://") != std::string::npos,
        "{}: an address is not allowed in a model's own YAML; pass --data or --config {}", subject,
        path_);
    reader_.read_inline_data({.kind = DataChoice::Kind::kInline,
                              .yaml = yaml,
                              .base_folder = folder_.string(),
                              .origin = path_},
                             source_, subject);
    return ok_status();
  }

  Status read_value(const OptionEntry& entry, const YAML::Node& value, const std::string& subject) {
    const bool list = value.IsSequence();
    std::vector<std::string> texts;
    if (!list) texts.push_back(value.Scalar());
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) return input_error("{}: expected a list of plain values", subject);
      texts.push_back(item.Scalar());
    }
    if (list && entry.kind != OptionEntry::Kind::kRepeated) texts = {joined(texts, ",")};
    if (texts.empty()) reader_.read_empty(entry, source_, subject);
    for (const std::string& text : texts) {
      OFSDP_RETURN_IF_ERROR(reader_.read(entry.name, located(entry, text), source_, subject));
    }
    return ok_status();
  }

  // Returns a path relative to this file; words with a special meaning stay as they are.
  std::string located(const OptionEntry& entry, const std::string& text) const {
    const bool word = text.empty() || text == "none" || text == "synthetic" || text == "latest";
    if (!entry.is_path || word || is_address(text)) return text;
    const std::string path = (folder_ / text).lexically_normal().string();
    // A plug-in without a slash would be searched in OFSDP_PLUGIN_PATH.
    const bool bare = entry.name == "plugin" && path.find('/') == std::string::npos;
    return bare && std::filesystem::exists(path) ? "./" + path : path;
  }

  std::string path_;
  std::filesystem::path folder_;
  Source source_;
  OptionReader& reader_;
  std::set<std::string> seen_;
  ForeignFile accelerate_;
  std::vector<ForeignKey> accelerate_keys_;
};

// JSON is DeepSpeed's unless it has an Accelerate key, which also writes JSON, or only our keys.
bool is_deepspeed(const YAML::Node& root, const OptionReader& reader) {
  if (!root.IsMap()) return true;
  bool ours = root.size() > 0;
  for (const auto& pair : root) {
    if (!pair.first.IsScalar()) return true;
    std::string name = pair.first.Scalar();
    if (is_accelerate_key(name) && name != "fp16") return false;
    std::replace(name.begin(), name.end(), '_', '-');
    const bool mapping = pair.second.IsMap() && name != "data";
    const bool known = find_key(reader.table(), name) != nullptr || find_synonym(name) != nullptr;
    ours = ours && known && !mapping;
  }
  return !ours;
}

}  // namespace

Status read_config(const std::string& path, Source source, OptionReader& reader) {
  reader.note_file(path);
  if (std::filesystem::path(path).extension() != ".json") {
    return read_yaml_config(path, source, reader);
  }
  return without_yaml_exceptions(path, "JSON", [&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(const YAML::Node root, read_document(path, "JSON"));
    if (is_deepspeed(root, reader)) return read_deepspeed_config(path, source, reader);
    return ConfigFile(path, source, reader).read(root);
  });
}

Status read_yaml_config(const std::string& path, Source source, OptionReader& reader) {
  reader.note_file(path);
  return without_yaml_exceptions(path, "YAML", [&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(const YAML::Node root, read_document(path, "YAML"));
    return ConfigFile(path, source, reader).read(root);
  });
}

namespace {

const char* optimizer_option(const OrtOptimizer& optimizer) {
  return optimizer.kind == OrtOptimizer::Kind::kSgd ? "sgd" : "adamw";
}

// Prints 0.9 for the nearest float, as people write it.
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
    return input_error("{} is not supported with the training artifacts in {}: {}", flag,
                       settings.folder, why);
  };
  if (options.losses[0].kind != LossKind::kAuto)
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

namespace {

void make_absolute(std::string& path, const std::filesystem::path& folder) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(folder / path, error);
  if (!path.empty() && !error && !is_address(path)) path = absolute.lexically_normal().string();
}

void make_absolute(std::string& path) { make_absolute(path, std::filesystem::path()); }

// Changes every `file:` in the mapping under `data:`. The loader reports errors in it.
void make_absolute(DataChoice& data) {
  if (data.kind == DataChoice::Kind::kPath) make_absolute(data.path);
  if (data.kind != DataChoice::Kind::kInline) return;
  try {
    YAML::Node root = YAML::Load(data.yaml);
    for (auto part : root) {
      for (auto column : part.second) {
        YAML::Node file = column.second.IsMap() ? column.second["file"] : YAML::Node();
        if (!file.IsDefined() || !file.IsScalar()) continue;
        std::string path = file.Scalar();
        make_absolute(path, data.base_folder);
        column.second["file"] = path;
      }
    }
    data.yaml = YAML::Dump(root);
  } catch (const YAML::Exception&) {
    return;
  }
}

Options with_absolute_paths(Options o) {
  o.model = address_of(o.model);
  make_absolute(o.run.data);
  make_absolute(o.run.eval_data);
  for (std::string* path :
       {&o.checkpoint.dir, &o.files.output, &o.files.metrics, &o.files.trace, &o.pictures.report,
        &o.make_plugin, &o.model, &o.edit.adapters.from, &o.edit.adapter, &o.teacher.path,
        &o.launch.hostfile, &o.class_weights}) {
    make_absolute(*path);
  }
  for (std::string& log : o.files.log) {  // csv:FILE
    const size_t at = log.find(':') + 1;
    std::string path = log.substr(at);
    make_absolute(path);
    log = log.substr(0, at) + path;
  }
  for (auto& [name, value] : o.inputs) {
    if (value.ends_with(".npy")) make_absolute(value);
  }
  if (o.folder.dir) make_absolute(*o.folder.dir);
  if (o.checkpoint.resume != "latest") make_absolute(o.checkpoint.resume);
  for (std::string& plugin : o.plugins) {  // a bare name is searched for
    if (plugin.find('/') != std::string::npos) make_absolute(plugin);
  }
  return o;
}

constexpr size_t kMaxValueText = 48;

std::string shortened(const std::string& value) {
  if (value.size() <= kMaxValueText) return value;
  const size_t end = kMaxValueText / 2;
  return value.substr(0, kMaxValueText - end - 3) + "..." + value.substr(value.size() - end);
}

// Removes YAML quotes, which people need not see.
std::string without_quotes(const std::string& value) {
  const bool quoted = value.size() > 2 && value.front() == '"' && value.back() == '"';
  return quoted ? value.substr(1, value.size() - 2) : value;
}

}  // namespace

std::vector<std::string> changed_settings(const Options& options) {
  Options plain;
  plain.command = options.command;
  plain.optimizer.kind = options.optimizer.kind;
  plain.optimizer.plugin = options.optimizer.plugin;
  take_defaults_unless(plain.optimizer, [](const char*) { return false; });
  plain.optimizer.kind = UpdateOptions().kind;
  std::vector<std::string> list;
  for (const OptionEntry& entry : option_table()) {
    if (!entry.in_files || !entry.no_effect(options).beside.empty()) continue;
    std::string value = entry.show(options);
    if (value == entry.show(plain) || value == "~") continue;
    if (entry.name == "epochs" && !options.run.epochs) continue;  // --steps is given instead
    list.push_back(escaped(format_text("{} {}", entry.name, shortened(without_quotes(value)))));
  }
  return list;
}

std::string effective_config(const Options& options, int world) {
  Options shown = with_absolute_paths(options);
  // `fsdp-run resume` finds the checkpoint in the run's folder; the file begins the run anew.
  if (!shown.folder.taken.empty()) shown.checkpoint.resume.clear();
  // The run reports a wrong batch; here the parts stay as given.
  const auto sizes = resolve_batch(options, world);
  const auto hosts = static_cast<int>(options.launch.nnodes);
  if (hosts > 0 && world % hosts == 0) shown.launch.nproc_per_node = world / hosts;
  return format_text("# fsdp-run {} --config THIS_FILE\n{}", shown.model,
                     describe(shown, sizes.ok() ? std::optional(*sizes) : std::nullopt));
}

}  // namespace ofsdp::cli

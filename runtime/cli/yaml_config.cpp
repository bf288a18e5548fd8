#include "runtime/cli/yaml_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace ofsdp {
namespace {

// What `accelerate config` writes at the top level; `fsdp_*` and `tpu_*` besides.
constexpr std::array<std::string_view, 20> kAccelerateKeys = {"compute_environment",
                                                              "debug",
                                                              "distributed_type",
                                                              "downcast_bf16",
                                                              "machine_rank",
                                                              "main_process_ip",
                                                              "main_process_port",
                                                              "main_training_function",
                                                              "mixed_precision",
                                                              "num_machines",
                                                              "num_processes",
                                                              "rdzv_backend",
                                                              "same_network",
                                                              "use_cpu",
                                                              "enable_cpu_affinity",
                                                              "dynamo_config",
                                                              "deepspeed_config",
                                                              "megatron_lm_config",
                                                              "gpu_ids",
                                                              "ipex_config"};

bool is_accelerate_key(std::string_view key) {
  return key.starts_with("fsdp_") || key.starts_with("tpu_") ||
         std::find(kAccelerateKeys.begin(), kAccelerateKeys.end(), key) != kAccelerateKeys.end();
}

Result<std::string> read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return input_error("{}: expected a YAML file, found a folder", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) return input_error("{}: cannot read the file: {}", path, std::strerror(errno));
  return text.str();
}

class ConfigFile {
 public:
  ConfigFile(const std::string& path, Source source, OptionReader& reader)
      : path_(path),
        folder_(std::filesystem::path(path).parent_path()),
        source_(source),
        reader_(reader) {}

  Status read(const YAML::Node& root) {
    if (root.IsNull()) return ok_status();
    if (!root.IsMap()) return input_error("{}: expected a mapping of options", path_);
    for (const auto& pair : root) {
      OFSDP_RETURN_IF_ERROR(read_key(pair.first, pair.second));
    }
    return ok_status();
  }

 private:
  Status read_key(const YAML::Node& key_node, const YAML::Node& value) {
    const std::string at = fmt::format("{} line {}", path_, key_node.Mark().line + 1);
    if (!key_node.IsScalar()) return input_error("{}: expected the name of an option", at);
    const std::string key = key_node.Scalar();
    const std::string subject = fmt::format("{}: {}", at, key);
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    const OptionEntry* entry = find_entry(reader_.table(), name);
    if (entry == nullptr && name != "no-shuffle") return unknown_key(key, at);
    if (!seen_.insert(name).second) return input_error("{}: the key stands here twice", subject);
    if (value.IsNull()) return ok_status();
    if (value.IsMap()) return read_mapping(name, value, subject);
    if (entry == nullptr) return reader_.read(name, value.Scalar(), source_, subject);
    return read_value(*entry, value, subject);
  }

  Status unknown_key(const std::string& key, const std::string& at) const {
    if (is_accelerate_key(key)) return input_error("{}: {}: not built yet", at, key);
    std::vector<std::string> names = entry_names(reader_.table());
    for (std::string& name : names) std::replace(name.begin(), name.end(), '-', '_');
    return input_error("{}: unknown key '{}'{}", at, key, did_you_mean(key, names));
  }

  Status read_mapping(const std::string& name, const YAML::Node& value,
                      const std::string& subject) {
    if (name != "data") return input_error("{}: expected a value, found a mapping", subject);
    DataChoice data;
    data.kind = DataChoice::Kind::kInline;
    data.yaml = YAML::Dump(value);
    data.base_folder = folder_.string();
    data.origin = path_;
    reader_.read_inline_data(std::move(data), source_, subject);
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
    if (list && entry.kind != OptionEntry::Kind::kRepeated) {
      texts = {fmt::format("{}", fmt::join(texts, ","))};
    }
    if (texts.empty()) reader_.read_empty(entry, source_, subject);
    for (const std::string& text : texts) {
      OFSDP_RETURN_IF_ERROR(reader_.read(entry.name, located(entry, text), source_, subject));
    }
    return ok_status();
  }

  // A path is relative to this file; the words that stand for something else stay.
  std::string located(const OptionEntry& entry, const std::string& text) const {
    const bool word = text.empty() || text == "none" || text == "synthetic" || text == "latest";
    if (!entry.is_path || word) return text;
    return (folder_ / text).lexically_normal().string();
  }

  std::string path_;
  std::filesystem::path folder_;
  Source source_;
  OptionReader& reader_;
  std::set<std::string> seen_;
};

}  // namespace

Status read_yaml_config(const std::string& path, Source source, OptionReader& reader) {
  OFSDP_ASSIGN_OR_RETURN(const std::string text, read_text(path));
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.empty()) return ok_status();
    if (documents.size() > 1) {
      return input_error("{}: expected one YAML document, found {}", path, documents.size());
    }
    return ConfigFile(path, source, reader).read(documents.front());
  } catch (const YAML::Exception& error) {
    return input_error("{} line {}: expected YAML: {}", path, error.mark.line + 1, error.msg);
  }
}

}  // namespace ofsdp

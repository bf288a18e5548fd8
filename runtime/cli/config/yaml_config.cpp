#include "runtime/cli/config/yaml_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/cli/config/foreign/accelerate.h"
#include "runtime/cli/config/foreign/deepspeed.h"

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
  // Accelerate's files for another environment have other keys: the environment is the error, not
  // the first of those keys.
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
    if (entry == nullptr && name != "no-shuffle" && !foreign) return unknown_key(key, at);
    if (!seen_.insert(name).second) return input_error("{}: the key stands here twice", subject);
    if (value.IsNull()) return ok_status();
    if (foreign) {
      accelerate_keys_.push_back(accelerate_.key(key_node, value, ""));
      return ok_status();
    }
    if (value.IsMap()) return read_mapping(name, value, subject);
    if (entry == nullptr) return reader_.read(name, value.Scalar(), source_, subject);
    return read_value(*entry, value, subject);
  }

  Status unknown_key(const std::string& key, const std::string& at) const {
    std::vector<std::string> names;
    for (const std::string& name : entry_names(reader_.table())) names.push_back(yaml_key(name));
    for (std::string& name : accelerate_key_names()) names.push_back(std::move(name));
    return input_error("{}: unknown key '{}'{}", at, key, did_you_mean(key, names));
  }

  Status read_mapping(const std::string& name, const YAML::Node& value,
                      const std::string& subject) {
    if (name != "data") return input_error("{}: expected a value, found a mapping", subject);
    reader_.read_inline_data({.kind = DataChoice::Kind::kInline,
                              .yaml = YAML::Dump(value),
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

  // A path is relative to this file; the words that stand for something else stay.
  std::string located(const OptionEntry& entry, const std::string& text) const {
    const bool word = text.empty() || text == "none" || text == "synthetic" || text == "latest";
    if (!entry.is_path || word) return text;
    const std::string path = (folder_ / text).lexically_normal().string();
    // A plug-in without a slash would be looked for in OFSDP_PLUGIN_PATH.
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

// JSON is DeepSpeed's unless it has a key of Accelerate, which writes JSON as well, or only ours.
bool is_deepspeed(const YAML::Node& root, const OptionReader& reader) {
  if (!root.IsMap()) return true;
  bool ours = root.size() > 0;
  for (const auto& pair : root) {
    if (!pair.first.IsScalar()) return true;
    std::string name = pair.first.Scalar();
    if (is_accelerate_key(name) && name != "fp16") return false;
    std::replace(name.begin(), name.end(), '_', '-');
    const bool mapping = pair.second.IsMap() && name != "data";
    ours = ours && find_key(reader.table(), name) != nullptr && !mapping;
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

}  // namespace ofsdp::cli

#include "runtime/cli/config/effective_config.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "kernels/base/escaped.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

void make_absolute(std::string& path, const std::filesystem::path& folder) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(folder / path, error);
  if (!path.empty() && !error) path = absolute.lexically_normal().string();
}

void make_absolute(std::string& path) { make_absolute(path, std::filesystem::path()); }

// Every `file:` of the mapping under `data:`. The loader reports errors in it.
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
  make_absolute(o.run.data);
  make_absolute(o.run.eval_data);
  for (std::string* path : {&o.checkpoint.dir, &o.files.output, &o.files.metrics, &o.files.trace,
                            &o.make_plugin, &o.model, &o.edit.lora_from, &o.edit.adapter}) {
    make_absolute(*path);
  }
  if (o.checkpoint.resume != "latest") make_absolute(o.checkpoint.resume);
  for (std::string& plugin : o.plugins) {  // a bare name is searched for
    if (plugin.find('/') != std::string::npos) make_absolute(plugin);
  }
  return o;
}

constexpr size_t kMostOfAValue = 48;

std::string shortened(const std::string& value) {
  if (value.size() <= kMostOfAValue) return value;
  const size_t end = kMostOfAValue / 2;
  return value.substr(0, kMostOfAValue - end - 3) + "..." + value.substr(value.size() - end);
}

// YAML's quotes are for programs.
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
    if (!entry.in_files || !no_effect(options, entry.name).beside.empty()) continue;
    std::string value = entry.show(options);
    if (value == entry.show(plain) || value == "~") continue;
    if (entry.name == "epochs" && !options.run.epochs) continue;  // --steps says it
    list.push_back(escaped(format_text("{} {}", entry.name, shortened(without_quotes(value)))));
  }
  return list;
}

std::string effective_config(const Options& options, int world) {
  Options shown = with_absolute_paths(options);
  // The run reports a wrong batch; until then its parts stay as they were given.
  const auto sizes = resolve_batch(options, world);
  const auto hosts = static_cast<int>(options.launch.nnodes);
  if (hosts > 0 && world % hosts == 0) shown.launch.nproc_per_node = world / hosts;
  return format_text("# fsdp-run {} --config THIS_FILE\n{}", shown.model,
                     describe(shown, sizes.ok() ? std::optional(*sizes) : std::nullopt));
}

}  // namespace ofsdp::cli

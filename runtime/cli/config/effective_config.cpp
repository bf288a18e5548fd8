#include "runtime/cli/config/effective_config.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>

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

}  // namespace

std::string effective_config(const Options& options, int world) {
  Options shown = with_absolute_paths(options);
  // The run reports a wrong batch; until then its parts stay as they were given.
  const auto sizes = resolve_batch(options.batch, options.launch.deterministic, world);
  const auto hosts = static_cast<int>(options.launch.nnodes);
  if (hosts > 0 && world % hosts == 0) shown.launch.nproc_per_node = world / hosts;
  return format_text("# fsdp-run {} --config THIS_FILE\n{}", shown.model,
                     describe(shown, sizes.ok() ? std::optional(*sizes) : std::nullopt));
}

}  // namespace ofsdp::cli

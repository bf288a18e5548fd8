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

// Every `file:` of the mapping under `data:`. What is wrong with it the loader says.
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

void make_paths_absolute(Options& o) {
  make_absolute(o.run.data);
  make_absolute(o.run.eval_data);
  for (std::string* path : {&o.checkpoint.dir, &o.files.output, &o.files.metrics, &o.files.trace,
                            &o.make_plugin, &o.model}) {
    make_absolute(*path);
  }
  if (o.checkpoint.resume != "latest") make_absolute(o.checkpoint.resume);
  for (std::string& plugin : o.plugins) {  // a bare name is searched for
    if (plugin.find('/') != std::string::npos) make_absolute(plugin);
  }
}

}  // namespace

std::string effective_config(Options options, int world) {
  make_paths_absolute(options);
  // What is wrong with the batch the run says; until then its parts stand as they were given.
  if (!reconcile_batch(options, world).ok()) options.batch.global_batch_size = 0;
  const auto hosts = static_cast<int>(options.launch.nnodes);
  if (hosts > 0 && world % hosts == 0) options.launch.nproc_per_node = world / hosts;
  return format_text("# fsdp-run {} --config THIS_FILE\n{}", options.model, describe(options));
}

}  // namespace ofsdp::cli

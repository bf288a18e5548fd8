#include "runtime/train/setup/class_names.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "fsdp/checkpoint/disk.h"
#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

// Reads a name a line; lines may end as on Windows, and empty ones may end the file.
Result<std::vector<std::string>> read_names(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    names.push_back(line);
  }
  while (!names.empty() && names.back().empty()) names.pop_back();
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    OFSDP_REJECT_IF(names[i].empty() || !seen.insert(names[i]).second,
                    "{} line {}: expected the name of another class, found {}", path, i + 1,
                    names[i].empty() ? "nothing" : "'" + names[i] + "' again");
  }
  return names;
}

}  // namespace

std::vector<std::string> class_files_of(const std::string& model) {
  std::filesystem::path own = model;
  own.replace_extension(kClassesFile);
  return {own.string(), (own.parent_path() / kClassesFile).string()};
}

Result<ClassNames> class_names_of(const std::string& path, const Graph& graph) {
  if (!graph.class_names.empty()) {
    return ClassNames{graph.class_names, path, /*binding=*/true};
  }
  bool binding = true;
  for (const std::string& file : class_files_of(path)) {
    if (is_file(file)) {
      OFSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, read_names(file));
      return ClassNames{std::move(names), file, binding};
    }
    binding = false;  // the folder's may belong to another model
  }
  return ClassNames();
}

Result<ClassNames> class_names_of_run(const Options& options, const Graph& graph) {
  if (options.edit.head || options.edit.added) return ClassNames();
  OFSDP_ASSIGN_OR_RETURN(ClassNames own, class_names_of(options.model, graph));
  if (!is_file(options.checkpoint.resume)) return own;
  OFSDP_ASSIGN_OR_RETURN(ClassNames trained, class_names_of(options.checkpoint.resume, graph));
  return trained.binding || own.names.empty() ? trained : own;
}

Status write_class_names(const std::vector<std::string>& names, const std::string& model) {
  std::string lines;
  for (const std::string& name : names) lines += name + "\n";
  if (lines.empty()) return {};
  for (const std::string& file : class_files_of(model)) {
    OFSDP_RETURN_IF_ERROR(write_whole_file(file, lines));
  }
  return {};
}

}  // namespace ofsdp::runtime

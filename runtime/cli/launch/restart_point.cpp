#include "runtime/cli/launch/restart_point.h"

#include <sys/stat.h>

#include "fsdp/checkpoint/checkpoint_store.h"

namespace ofsdp::cli {

RestartPoint::RestartPoint(const std::string& dir) : dir_(dir), before_(latest()) {}

RestartPoint::Latest RestartPoint::latest() const {
  if (dir_.empty()) return {};
  const std::vector<std::string> names = complete_checkpoints(dir_);
  if (names.empty()) return {};
  struct stat found {};
  const std::string manifest = join_path(join_path(dir_, names.front()), kManifestName);
  if (stat(manifest.c_str(), &found) != 0) return {};
  return {names.front(), static_cast<uint64_t>(found.st_ino)};
}

bool RestartPoint::has_saved() const {
  const Latest now = latest();
  return !now.name.empty() && !(now == before_);
}

std::string RestartPoint::text() const {
  if (dir_.empty())
    return "from where the run began, for nothing is saved without --checkpoint-dir";
  if (!has_saved()) {
    return format_text("from where the run began, for it has saved no checkpoint in {} yet", dir_);
  }
  return format_text("from the latest checkpoint in {}", dir_);
}

}  // namespace ofsdp::cli

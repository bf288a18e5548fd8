#include "library/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kernels/base/reject.h"

namespace ofsdp::library {

Result<TemporaryFolder> TemporaryFolder::make() {
  std::error_code error;
  const auto system = std::filesystem::temp_directory_path(error);
  TemporaryFolder folder;
  folder.path_ = (error ? std::filesystem::path("/tmp") : system) / "onnx_fsdp-XXXXXX";
  if (mkdtemp(folder.path_.data()) != nullptr) return folder;
  const std::string wanted = std::exchange(folder.path_, {});
  return fault("{}: cannot be made: {}", wanted, std::strerror(errno));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace ofsdp::library

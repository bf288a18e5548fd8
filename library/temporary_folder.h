// TemporaryFolder: a folder of this user's own in the system's temporary folder, gone with its owner.
//
// Ownership: removes the folder with all that is in it. Threads: one. Errors: kFault.
#pragma once

#include <string>
#include <utility>

#include "kernels/base/status.h"
#include "library/namespaces.h"

namespace ofsdp::library {

class TemporaryFolder {
 public:
  static Result<TemporaryFolder> make();
  TemporaryFolder() = default;
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ofsdp::library

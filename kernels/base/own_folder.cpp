#include "kernels/base/own_folder.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <system_error>

namespace ofsdp::base {

std::filesystem::path own_folder() {
  const auto* const here = reinterpret_cast<const void*>(&own_folder);
  Dl_info found{};
  link_map* map = nullptr;
  std::error_code error;
  const bool known =
      dladdr1(here, &found, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 && map != nullptr;
  // The main program has no name there.
  const bool in_library = known && map->l_name != nullptr && *map->l_name != 0;
  const auto file = in_library ? std::filesystem::canonical(map->l_name, error)
                               : std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : file.parent_path();
}

std::array<std::string, 3> own_library_paths(const std::string& name) {
  const std::filesystem::path folder = own_folder();
  return {folder / name, folder.parent_path() / name, name};
}

std::string own_program() {
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code error;
  const auto path = std::filesystem::read_symlink(kSelf, error);
  return error || access(path.c_str(), X_OK) != 0 ? kSelf : path.string();
}

}  // namespace ofsdp::base

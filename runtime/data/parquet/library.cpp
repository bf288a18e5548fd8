#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "kernels/base/process.h"
#include "kernels/base/text.h"
#include "runtime/data/parquet/reader.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libofsdp_parquet.so";
// Arrow's libraries carry the version in their names; none loads in place of another.
constexpr int kSuffix = 100 * kArrowMajor + kArrowMinor;

// Adds LIB/python3.*/site-packages/pyarrow, and dist-packages.
void add_packages(const fs::path& lib, std::vector<fs::path>& folders) {
  std::error_code error;
  for (fs::directory_iterator i(lib, error), end; !error && i != end; i.increment(error)) {
    if (!i->path().filename().string().starts_with("python3")) continue;
    folders.push_back(i->path() / "site-packages/pyarrow");
    folders.push_back(i->path() / "dist-packages/pyarrow");
  }
}

// Returns the folders in which pip and conda put pyarrow, of the Pythons that a user would start.
std::vector<fs::path> pyarrow_folders() {
  std::vector<fs::path> folders = {own_folder() / "../../pyarrow"};  // of this package's wheel
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = variable(name);
    if (prefix.empty()) continue;
    add_packages(fs::path(prefix) / "lib", folders);
    folders.push_back(fs::path(prefix) / "lib");
  }
  std::istringstream programs(variable("PATH"));
  for (std::string bin; std::getline(programs, bin, ':');) {
    if (bin.starts_with('/') && access((bin + "/python3").c_str(), X_OK) == 0) {
      add_packages(fs::path(bin).parent_path() / "lib", folders);
    }
  }
  const std::string home = variable("HOME");
  if (!home.empty()) add_packages(fs::path(home) / ".local/lib", folders);
  add_packages("/usr/local/lib", folders);
  add_packages("/usr/lib", folders);
  return folders;
}

// The libraries stay loaded, and the names that ours needs find them.
bool load_arrow(const fs::path& folder) {
  for (const char* name : {"libarrow", "libparquet"}) {
    const std::string file = (folder / format_text("{}.so.{}", name, kSuffix)).string();
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return false;
  }
  return true;
}

// Returns ", found FILE" for an Arrow of another version.
std::string other_arrow(const std::vector<fs::path>& folders) {
  std::error_code error;
  for (const fs::path& folder : folders) {
    for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
      if (!i->path().filename().string().starts_with("libarrow.so.")) continue;
      return format_text("'{}'", escaped(i->path().lexically_normal().string()));
    }
  }
  return "none";
}

struct Loaded {
  void* handle = nullptr;
  bool there = false;  // the file
  std::string why;
};

Loaded load_own() {
  Loaded loaded;
  for (const std::string& path : own_library_paths(kLibrary)) {
    loaded.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (loaded.handle != nullptr) break;
    const char* const said = dlerror();
    const bool there = access(path.c_str(), F_OK) == 0;
    if (there && !loaded.there) loaded.why = said == nullptr ? "" : said;
    loaded.there = loaded.there || there;
  }
  return loaded;
}

Result<decltype(&ofsdp_parquet_open)> load_library(const std::string& path) {
  Loaded own = load_own();
  if (own.handle == nullptr) {
    OFSDP_REJECT_IF(!own.there,
                    "{}: parquet files need {}, which this build lacks: run scripts/setup.sh "
                    "--parquet and build again, or write the table as .csv",
                    path, kLibrary);
    const std::vector<fs::path> folders = pyarrow_folders();
    const bool loaded = std::ranges::any_of(folders, load_arrow);
    OFSDP_REJECT_IF(!loaded,
                    "{}: parquet files are read by the libraries of pyarrow {}.{}, found {}: "
                    "pip install 'pyarrow=={}.{}.*'",
                    path, kArrowMajor, kArrowMinor, other_arrow(folders), kArrowMajor, kArrowMinor);
    own = load_own();
    OFSDP_REJECT_IF(own.handle == nullptr, "{}: {} does not load: {}", path, kLibrary,
                    escaped(own.why));
  }
  auto* const version = reinterpret_cast<decltype(&ofsdp_parquet_version)>(
      dlsym(own.handle, "ofsdp_parquet_version"));
  OFSDP_REJECT_IF(version == nullptr || version() != kParquetLibraryVersion,
                  "{}: {} is of another version of fsdp-run", path, kLibrary);
  return reinterpret_cast<decltype(&ofsdp_parquet_open)>(dlsym(own.handle, "ofsdp_parquet_open"));
}

}  // namespace

Result<std::unique_ptr<ParquetReader>> open_parquet_reader(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(auto* const open, load_library(path));
  char error[512] = "";
  std::unique_ptr<ParquetReader> reader(open(path.c_str(), error, sizeof error));
  OFSDP_REJECT_IF(reader == nullptr,
                  "{}: expected a parquet file, found one that cannot be read: {}", path,
                  escaped(error));
  return reader;
}

}  // namespace ofsdp::runtime

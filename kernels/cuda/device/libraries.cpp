#include "kernels/cuda/device/libraries.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace ofsdp::kernels::cuda {
namespace {

struct Description {
  const char* name;
  const char* variable;
  std::array<const char*, 3> files;  // newest first
  const char* version_function;
  long least;
  const char* least_text;
  const char* without;
};

constexpr std::array<Description, 4> kLibraries{{
    {"cuBLASLt",
     "OFSDP_CUBLASLT_LIBRARY",
     {"libcublasLt.so.13", "libcublasLt.so.12", nullptr},
     "cublasLtGetVersion",
     120400,
     "12.4",
     "there are no matrix products"},
    {"cuDNN",
     "OFSDP_CUDNN_LIBRARY",
     {"libcudnn.so.9", nullptr, nullptr},
     "cudnnGetVersion",
     90000,
     "9.0",
     "attention and convolutions are our own kernels, slower"},
    {"NCCL",
     "OFSDP_NCCL_LIBRARY",
     {"libnccl.so.2", nullptr, nullptr},
     "ncclGetVersion",
     21800,
     "2.18",
     "one rank alone can run"},
    {"NVRTC",
     "OFSDP_NVRTC_LIBRARY",
     {"libnvrtc.so.13", "libnvrtc.so.12", nullptr},
     "nvrtcVersion",
     120400,
     "12.4",
     "chains of elementwise operators are interpreted, slower"},
}};

struct Opened {
  void* handle = nullptr;
  std::string why;  // it is absent
};

bool is(const Description& d, Nvidia which) {
  return d.version_function == kLibraries[static_cast<size_t>(which)].version_function;
}

// ncclGetVersion writes its answer, nvrtcVersion in two parts; the others return it.
long version_of(const Description& d, void* handle) {
  void* function = dlsym(handle, d.version_function);
  if (function == nullptr) return 0;
  if (is(d, Nvidia::kNvrtc)) {
    int major = 0, minor = 0;
    reinterpret_cast<int (*)(int*, int*)>(function)(&major, &minor);
    return 10000L * major + 100L * minor;
  }
  if (is(d, Nvidia::kNccl)) {
    int version = 0;
    reinterpret_cast<int (*)(int*)>(function)(&version);
    return version;
  }
  return static_cast<long>(reinterpret_cast<size_t (*)()>(function)());
}

// The file that the environment names; else by name, and where the toolkit installs what the loader
// need not know of.
std::vector<std::string> candidates(const Description& d) {
  const char* named = std::getenv(d.variable);
  if (named != nullptr && *named != 0) return {named};
  std::vector<std::string> files;
  for (const char* folder : {"", "/usr/local/cuda/lib64/"}) {
    for (const char* file : d.files) {
      if (file != nullptr) files.push_back(std::string(folder) + file);
    }
  }
  return files;
}

Opened open(const Description& d) {
#ifdef OFSDP_WITHOUT_CUDNN
  if (is(d, Nvidia::kCudnn)) return {nullptr, "its headers were not there when this was built"};
#endif
  Opened opened;
  for (const std::string& file : candidates(d)) {
    if (opened.handle != nullptr) break;
    opened.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened.handle == nullptr && opened.why.empty()) opened.why = dlerror();
  }
  if (opened.handle == nullptr) return opened;
  const long version = version_of(d, opened.handle);
  if (version >= d.least) return {opened.handle, ""};
  return {nullptr,
          std::string("expected ") + d.least_text + " or newer, found " + std::to_string(version)};
}

const Opened& library(Nvidia which) {
  static const std::array<Opened, 4> opened{open(kLibraries[0]), open(kLibraries[1]),
                                            open(kLibraries[2]), open(kLibraries[3])};
  return opened[static_cast<size_t>(which)];
}

}  // namespace

void* find_function(Nvidia which, const char* name) {
  const Opened& opened = library(which);
  return opened.handle == nullptr ? nullptr : dlsym(opened.handle, name);
}

std::string why_missing(Nvidia which) {
  const Opened& opened = library(which);
  return opened.handle == nullptr ? opened.why : "";
}

std::string missing_libraries() {
  std::string text;
  for (const Nvidia which : {Nvidia::kCublasLt, Nvidia::kCudnn, Nvidia::kNccl, Nvidia::kNvrtc}) {
    const Opened& opened = library(which);
    const Description& d = kLibraries[static_cast<size_t>(which)];
    if (opened.handle != nullptr) continue;
    text += std::string(d.name) + ": " + opened.why + "; without it " + d.without + "\n";
  }
  return text;
}

}  // namespace ofsdp::kernels::cuda

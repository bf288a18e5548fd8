#include "kernels/cuda/device/libraries.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <string>
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
  std::string why;  // reason if absent
};

bool is(const Description& d, Nvidia which) {
  return d.version_function == kLibraries[static_cast<size_t>(which)].version_function;
}

// ncclGetVersion stores the version, nvrtcVersion stores major and minor; the others return it.
long library_version(const Description& d, void* handle) {
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

// Returns the file that the environment names, or else the library names, plain and in the
// toolkit's folder, which need not be on the loader's path.
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
  const long version = library_version(d, opened.handle);
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

// --- NVRTC ---

namespace {

// NVRTC's C API, declared here so that the build does not need nvrtc.h.
struct Nvrtc {
  using Program = struct OpaqueProgram*;
#define OFSDP_NVRTC(name, symbol, ...) \
  int (*name)(__VA_ARGS__) = function_of<int(__VA_ARGS__)>(Nvidia::kNvrtc, #symbol)
  OFSDP_NVRTC(create, nvrtcCreateProgram, Program*, const char* text, const char* name, int,
              const char* const*, const char* const*);
  OFSDP_NVRTC(compile, nvrtcCompileProgram, Program, int, const char* const*);
  OFSDP_NVRTC(destroy, nvrtcDestroyProgram, Program*);
  OFSDP_NVRTC(log_size, nvrtcGetProgramLogSize, Program, size_t*);
  OFSDP_NVRTC(log, nvrtcGetProgramLog, Program, char*);
  OFSDP_NVRTC(cubin_size, nvrtcGetCUBINSize, Program, size_t*);
  OFSDP_NVRTC(cubin, nvrtcGetCUBIN, Program, char*);
  OFSDP_NVRTC(ptx_size, nvrtcGetPTXSize, Program, size_t*);
  OFSDP_NVRTC(ptx, nvrtcGetPTX, Program, char*);
  OFSDP_NVRTC(count, nvrtcGetNumSupportedArchs, int*);
  OFSDP_NVRTC(architectures, nvrtcGetSupportedArchs, int*);
#undef OFSDP_NVRTC

  bool there() const {
    return create && compile && destroy && log_size && log && cubin_size && cubin && ptx_size &&
           ptx && count && architectures;
  }
};

// Returns the newest architecture up to `capability` that NVRTC supports, or 0.
int known_architecture(const Nvrtc& nvrtc, int capability) {
  int count = 0;
  if (nvrtc.count(&count) != 0 || count <= 0) return 0;
  std::vector<int> known(static_cast<size_t>(count));
  if (nvrtc.architectures(known.data()) != 0) return 0;
  int best = 0;
  for (int one : known) best = one <= capability ? std::max(best, one) : best;
  return best;
}

std::string read(Nvrtc::Program program, int (*size)(Nvrtc::Program, size_t*),
                 int (*get)(Nvrtc::Program, char*)) {
  size_t bytes = 0;
  if (size(program, &bytes) != 0) return "";
  std::string made(bytes, '\0');
  return get(program, made.data()) == 0 ? made : "";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

CompiledText compile_text(const std::string& text, int capability) {
  if (const std::string why = why_missing(Nvidia::kNvrtc); !why.empty()) return {"", why};
  const Nvrtc nvrtc;
  if (!nvrtc.there()) return {"", "NVRTC lacks a function"};
  const int known = known_architecture(nvrtc, capability);
  if (known == 0) return {"", "NVRTC knows no sm_" + std::to_string(capability)};
  // No FMA across steps: a fused chain must round as its separate operators do.
  const bool same = known == capability;
  const std::string target =
      std::string("--gpu-architecture=") + (same ? "sm_" : "compute_") + std::to_string(known);
  const std::array<const char*, 3> options{target.c_str(), "--fmad=false", "--std=c++17"};
  Nvrtc::Program program = nullptr;
  if (nvrtc.create(&program, text.c_str(), "chain.cu", 0, nullptr, nullptr) != 0) {
    return {"", "NVRTC takes no program"};
  }
  CompiledText made;
  if (nvrtc.compile(program, static_cast<int>(options.size()), options.data()) == 0) {
    made.code = same ? read(program, nvrtc.cubin_size, nvrtc.cubin)
                     : read(program, nvrtc.ptx_size, nvrtc.ptx);
  }
  if (made.code.empty()) made.why = first_line(read(program, nvrtc.log_size, nvrtc.log));
  if (made.code.empty() && made.why.empty()) made.why = "NVRTC made no code";
  nvrtc.destroy(&program);
  return made;
}

}  // namespace ofsdp::kernels::cuda

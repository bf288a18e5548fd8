#include "kernels/cuda/device/runtime_compiler.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cuda/device/libraries.h"

namespace ofsdp::kernels::cuda {
namespace {

// What is used of NVRTC, as its public API has it: nvrtc.h is not needed to build.
struct Nvrtc {
  using Program = struct OpaqueProgram*;
  int (*create)(Program*, const char* text, const char* name, int, const char* const*,
                const char* const*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*log_size)(Program, size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*cubin_size)(Program, size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*ptx_size)(Program, size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*architectures)(int*) = nullptr;

  Nvrtc() {
    find(create, "nvrtcCreateProgram");
    find(compile, "nvrtcCompileProgram");
    find(destroy, "nvrtcDestroyProgram");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(cubin_size, "nvrtcGetCUBINSize");
    find(cubin, "nvrtcGetCUBIN");
    find(ptx_size, "nvrtcGetPTXSize");
    find(ptx, "nvrtcGetPTX");
    find(count, "nvrtcGetNumSupportedArchs");
    find(architectures, "nvrtcGetSupportedArchs");
  }

  bool there = true;

 private:
  template <typename Function>
  void find(Function*& function, const char* name) {
    function = function_of<Function>(Nvidia::kNvrtc, name);
    there = there && function != nullptr;
  }
};

// The newest that NVRTC knows up to `capability`; 0: none.
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
  if (!nvrtc.there) return {"", "NVRTC lacks a function"};
  const int known = known_architecture(nvrtc, capability);
  if (known == 0) return {"", "NVRTC knows no sm_" + std::to_string(capability)};
  // No products contracted over steps: a chain rounds as its members do.
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

#include "kernels/cuda/device/runtime_compiler.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cuda/device/libraries.h"

namespace ofsdp::kernels::cuda {
namespace {

// The part of NVRTC that is used, as its public API has it: nvrtc.h is not needed to build.
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
  if (!nvrtc.there()) return {"", "NVRTC lacks a function"};
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

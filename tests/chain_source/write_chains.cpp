// Writes the chains of chain_cases.h to stdout, as a source for the emulator (tests/emulator).
#include <cstdio>

#include "tests/chain_source/chain_cases.h"

namespace ofsdp {
namespace {

constexpr char kHead[] = R"cuda(#include <bit>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/formulas.cuh"
#include "tests/chain_source/chain_cases.h"
#include "tests/support/namespaces.h"

#define OFSDP_KERNEL __global__ void

namespace ofsdp::kernels::cuda {
inline float float_of_bits(unsigned bits) { return std::bit_cast<float>(bits); }
)cuda";

constexpr char kRun[] = R"cuda(
int run(const ChainArguments& from, bool wide) {
  static_assert(sizeof(Arguments) == sizeof(ChainArguments));
  Arguments arguments;
  std::memcpy(&arguments, &from, sizeof(arguments));
  const int64_t pack = wide ? 16 / sizeof(Element) : 1;
  const int64_t blocks = blocks_for(blocks_for(from.numel, pack), kChainThreads);
  return launch_blocks(nullptr, blocks, kChainThreads, wide ? chain_wide : chain_single, arguments);
}
)cuda";

const char* element_of(DType dtype) {
  if (dtype == DType::kFloat16) return "__half";
  return dtype == DType::kBFloat16 ? "__nv_bfloat16" : "float";
}

void write() {
  std::string text = kHead, table;
  for (const testing::ChainCase& c : testing::chain_cases()) {
    text += "namespace " + c.name + " {\nusing Element = " + element_of(c.program.dtype) +
            ";\ninline Element of_float(float v) { return Stored<Element>::from(v); }\n" +
            cuda::chain_body(c.program, c.wanted, "chain") + kRun + "}\n";
    table += "    {\"" + c.name + "\", cuda::" + c.name + "::run},\n";
  }
  text += "}\nnamespace ofsdp::testing {\nconst std::vector<WrittenChain> kWrittenChains = {\n" +
          table + "};\n}\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace
}  // namespace ofsdp

int main() {
  ofsdp::write();
  return 0;
}

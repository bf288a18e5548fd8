#include <algorithm>
#include <bit>
#include <cctype>

#include "kernels/core/chain.h"
#include "kernels/cuda/pointwise/chain.h"
#include "kernels/cuda/pointwise/formulas_text.h"

namespace ofsdp::kernels::cuda {
namespace {

// Replaces the host compiler's headers, since NVRTC gets none.
constexpr char kPrelude[] = R"cuda(
#define OFSDP_KERNEL extern "C" __global__ void __launch_bounds__(256)
#define OFSDP_HD __device__ inline
namespace ofsdp::kernels {
namespace cuda {
struct DeviceMath {
  OFSDP_HD static float exp(float x) { return ::expf(x); }
  OFSDP_HD static float log(float x) { return ::logf(x); }
  OFSDP_HD static float log1p(float x) { return ::log1pf(x); }
  OFSDP_HD static float sqrt(float x) { return ::sqrtf(x); }
  OFSDP_HD static float tanh(float x) { return ::tanhf(x); }
  OFSDP_HD static float erf(float x) { return ::erff(x); }
  OFSDP_HD static float fabs(float x) { return ::fabsf(x); }
};
__device__ inline float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
)cuda";

constexpr char kFloat32[] = R"cuda(
typedef float Element;
__device__ inline float to_float(Element v) { return v; }
__device__ inline Element of_float(float v) { return v; }
)cuda";

constexpr char kFloat16[] = R"cuda(
struct Element { unsigned short bits; };
__device__ inline float to_float(Element v) {
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(v.bits));
  return made;
}
__device__ inline Element of_float(float v) {
  Element made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made.bits) : "f"(v));
  return made;
}
)cuda";

constexpr char kBFloat16[] = R"cuda(
struct Element { unsigned short bits; };
__device__ inline float to_float(Element v) { return __uint_as_float(unsigned(v.bits) << 16); }
__device__ inline Element of_float(float v) {
  Element made;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made.bits) : "f"(v));
  return made;
}
)cuda";

const char* element_of(DType dtype) {
  if (dtype == DType::kFloat16) return kFloat16;
  return dtype == DType::kBFloat16 ? kBFloat16 : kFloat32;
}

// Returns the operation's formula with operands named `a` and `b`.
std::string formula(ChainOp op, const std::string& a, const std::string& b) {
  std::string_view text;
#define OFSDP_FORMULA(name, expression) \
  if (op == ChainOp::k##name) text = #expression;
  OFSDP_CHAIN_FORMULAS(OFSDP_FORMULA)
#undef OFSDP_FORMULA
  const auto in_word = [&](size_t i) {
    return i < text.size() && (std::isalnum(text[i]) != 0 || text[i] == '_');
  };
  std::string made;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool alone = !in_word(i - 1) && !in_word(i + 1);
    made += alone && text[i] == 'a' ? a : alone && text[i] == 'b' ? b : std::string(1, text[i]);
  }
  return made;
}

bool is_single(const ChainProgram& p, int i) { return p.periods[i] == 1 && p.numel != 1; }

std::string value(int i) { return format_text("v{}", i); }

// Writes the loads that precede the loop over elements; scalars become one float.
std::string loads(const ChainProgram& p) {
  // A 64-bit remainder takes about 80 instructions.
  const char* const word = p.numel <= INT32_MAX ? "unsigned" : "";
  std::string text;
  for (int i = 0; i < p.inputs; ++i) {
    if (p.periods[i] == p.numel) {
      text += format_text("  const Elements<N> x{} = elements<N>(p.x[{}], i);\n", i, i);
    } else if (p.periods[i] == 1) {
      text += format_text("  const float v{} = to_float(elements<1>(p.x[{}], 0).v[0]);\n", i, i);
    } else {
      text += format_text(
          "  const Elements<N> x{} = elements<N>(p.x[{}], {}(i) % {}(p.periods[{}]));\n", i, i,
          word, word, i);
    }
  }
  return text;
}

std::string step_text(const ChainProgram& p, int s) {
  const std::string a = value(p.a[s]);
  if (p.ops[s] == ChainOp::kRound) return format_text("to_float(of_float({}))", a);
  if (p.ops[s] != ChainOp::kNumber) return formula(p.ops[s], a, value(p.b[s]));
  return format_text("float_of_bits({:#x}u)", std::bit_cast<uint32_t>(p.numbers[s]));
}

std::string steps(const ChainProgram& p) {
  std::string text;
  for (int i = 0; i < p.inputs; ++i) {
    if (!is_single(p, i)) text += format_text("    const float v{} = to_float(x{}.v[e]);\n", i, i);
  }
  for (int s = 0; s < p.steps; ++s) {
    text += format_text("    const float v{} = {};\n", p.inputs + s, step_text(p, s));
  }
  return text;
}

}  // namespace

ChainProgram chain_program(const Problem& p) {
  const Chain source = *Chain::parse(p.attributes, p.inputs.size());
  const auto out = std::ranges::find_if(p.outputs, &TensorDesc::present);
  ChainProgram program;
  program.dtype = p.in(0).dtype;
  program.numel = out->numel();
  program.inputs = source.inputs;
  program.steps = static_cast<int>(source.steps.size());
  program.results = static_cast<int>(p.outputs.size());
  for (size_t i = 0; i < p.inputs.size(); ++i) program.periods[i] = p.in(i).numel();
  for (size_t s = 0; s < source.steps.size(); ++s) {
    const ChainStep& step = source.steps[s];
    program.ops[s] = step.op;
    program.a[s] = static_cast<uint8_t>(std::max(step.a, 0));
    program.b[s] = static_cast<uint8_t>(std::max(step.b, 0));
    program.numbers[s] = step.number;
  }
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    program.values[i] = static_cast<uint8_t>(source.results[i]);
  }
  return program;
}

bool can_run_wide(const ChainProgram& p, const ChainArguments& arguments) {
  const int64_t pack = 16 / static_cast<int64_t>(dtype_size(p.dtype));
  const auto is_aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  for (int i = 0; i < p.inputs; ++i) {
    const bool even = p.periods[i] == p.numel || p.periods[i] % pack == 0;
    if (!is_single(p, i) && !(even && is_aligned(arguments.x[i]))) return false;
  }
  return std::all_of(arguments.y, arguments.y + p.results, is_aligned);
}

std::string chain_body(const ChainProgram& p, const std::vector<bool>& wanted,
                       const std::string& name) {
  std::string made, stored, stores;
  for (int k = 0; k < p.results; ++k) {
    if (!wanted[static_cast<size_t>(k)]) continue;
    made += format_text("  Elements<N> y{};\n", k);
    stored += format_text("    y{}.v[e] = of_float({});\n", k, value(p.values[k]));
    stores += format_text("  put<N>(p.y[{}], i, y{});\n", k, k);
  }
  std::string text = format_text(
      "struct Arguments {{\n  const void* x[{}];\n  void* y[{}];\n  long long periods[{}];\n"
      "  long long numel;\n}};\n",
      kMaxChainInputs, kMaxChainResults, kMaxChainInputs);
  text += R"cuda(
template <int N>
struct alignas(sizeof(Element) * N) Elements {
  Element v[N];
};
template <int N>
__device__ inline Elements<N> elements(const void* from, long long at) {
  return *reinterpret_cast<const Elements<N>*>(static_cast<const Element*>(from) + at);
}
template <int N>
__device__ inline void put(void* to, long long at, const Elements<N>& made) {
  *reinterpret_cast<Elements<N>*>(static_cast<Element*>(to) + at) = made;
}
template <int N>
__device__ inline void chain_at(const Arguments& p, long long i) {
)cuda";
  text += loads(p) + made + "#pragma unroll\n  for (int e = 0; e < N; ++e) {\n" + steps(p) +
          stored + "  }\n" + stores + "}\n";
  return text + format_text(R"cuda(
OFSDP_KERNEL {}_wide(Arguments p) {{
  constexpr int kWide = 16 / sizeof(Element);
  const long long i = (blockIdx.x * {}LL + threadIdx.x) * kWide;
  if (i + kWide <= p.numel) {{
    chain_at<kWide>(p, i);
  }} else {{
    for (long long at = i; at < p.numel; ++at) chain_at<1>(p, at);
  }}
}}
OFSDP_KERNEL {}_single(Arguments p) {{
  const long long i = blockIdx.x * {}LL + threadIdx.x;
  if (i < p.numel) chain_at<1>(p, i);
}}
)cuda",
                            name, kChainThreads, name, kChainThreads);
}

std::string chain_source(const ChainProgram& p, const std::vector<bool>& wanted) {
  return std::string(kPrelude) + element_of(p.dtype) +
         "}  // namespace cuda\n}  // namespace ofsdp\n" + kFormulasText +
         "namespace ofsdp::kernels {\nnamespace cuda {\n" + chain_body(p, wanted, "chain") +
         "}  // namespace cuda\n}  // namespace ofsdp\n";
}

}  // namespace ofsdp::kernels::cuda

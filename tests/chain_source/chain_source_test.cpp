// The text written by kernels/cuda/pointwise/chain_source.cpp: on the emulator it gives the bits of
// the interpreter (chain.cu), by single elements and by 16 bytes; and NVRTC, where it is installed,
// accepts it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/cuda/device/libraries.h"
#include "tests/chain_source/chain_cases.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using testing::ChainCase;

constexpr size_t kGuard = 64;

struct Buffer {
  Buffer(const TensorDesc& desc, std::byte fill)
      : bytes(desc.present() ? desc.bytes() : 0), memory((bytes + 2 * kGuard) / 64 + 2) {
    std::memset(memory.data(), int(fill), memory.size() * 64);
  }
  std::byte* data() { return memory[0].bytes + kGuard + offset; }
  const std::byte* data() const { return memory[0].bytes + kGuard + offset; }
  // Moves the data by `by` bytes, into the guard at the end; this guard comes to the front.
  void shift(size_t by) {
    std::byte* first = memory[0].bytes;
    std::rotate(first, first + memory.size() * 64 - by, first + memory.size() * 64);
    offset = by;
  }
  bool operator==(const Buffer& other) const {
    return std::memcmp(memory.data(), other.memory.data(), memory.size() * 64) == 0;
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  size_t bytes, offset = 0;
  std::vector<Line> memory;
};

std::vector<Buffer> filled(const std::vector<TensorDesc>& descs) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<Buffer> made;
  for (const TensorDesc& desc : descs) {
    Buffer& buffer = made.emplace_back(desc, std::byte{0});
    for (int64_t i = 0; i < desc.numel(); ++i) {
      // The last operands are divisors or stand under a root: positive.
      const float drawn = normal(random);
      const float v = made.size() > 2 ? std::abs(drawn) + 0.5f : drawn;
      auto* at16 = reinterpret_cast<uint16_t*>(buffer.data());
      if (desc.dtype == DType::kFloat32) reinterpret_cast<float*>(buffer.data())[i] = v;
      if (desc.dtype == DType::kFloat16) at16[i] = float_to_half(v);
      if (desc.dtype == DType::kBFloat16) at16[i] = float_to_bfloat16(v);
    }
  }
  return made;
}

std::vector<Buffer> empty(const std::vector<TensorDesc>& descs) {
  std::vector<Buffer> made;
  for (const TensorDesc& desc : descs) made.emplace_back(desc, std::byte{0xA5});
  return made;
}

int (*written(const std::string& name))(const cuda::ChainArguments&, bool) {
  const auto found = std::ranges::find_if(testing::kWrittenChains,
                                          [&](const auto& chain) { return name == chain.name; });
  return found == testing::kWrittenChains.end() ? nullptr : found->run;
}

class ChainSource : public ::testing::TestWithParam<ChainCase> {
 protected:
  // The results for `x` by the interpreter and, below, by the written kernels.
  std::vector<Buffer> interpreted(std::vector<Buffer> x) {
    std::vector<Buffer> y = empty(c.problem.outputs);
    void *from[cuda::kMaxChainInputs] = {}, *to[cuda::kMaxChainResults] = {};
    for (size_t i = 0; i < x.size(); ++i) from[i] = x[i].data();
    for (size_t k = 0; k < y.size(); ++k) to[k] = c.wanted[k] ? y[k].data() : nullptr;
    EXPECT_EQ(cuda::chain(c.program, from, to, nullptr), cudaSuccess);
    return y;
  }
  cuda::ChainArguments arguments(std::vector<Buffer>& x, std::vector<Buffer>& y) {
    cuda::ChainArguments made;
    for (size_t i = 0; i < x.size(); ++i) made.x[i] = x[i].data();
    for (size_t k = 0; k < y.size(); ++k) made.y[k] = c.wanted[k] ? y[k].data() : nullptr;
    std::copy_n(c.program.periods, c.program.inputs, made.periods);
    made.numel = c.program.numel;
    return made;
  }
  void expect_same(const cuda::ChainArguments& given, const std::vector<Buffer>& made,
                   const std::vector<Buffer>& expected, const char* how) {
    const auto run = written(c.name);
    ASSERT_NE(run, nullptr);
    ASSERT_EQ(run(given, cuda::can_run_wide(c.program, given)), 0);
    EXPECT_TRUE(made == expected) << how;
  }

  const ChainCase& c = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Cases, ChainSource, ::testing::ValuesIn(testing::chain_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ChainSource, GivesTheBitsOfTheInterpreter) {
  std::vector<Buffer> x = filled(c.problem.inputs);
  const std::vector<Buffer> expected = interpreted(x);
  std::vector<Buffer> y = empty(c.problem.outputs);
  expect_same(arguments(x, y), y, expected, "as wide as it goes");
  std::vector<Buffer> again = empty(c.problem.outputs);
  ASSERT_EQ(written(c.name)(arguments(x, again), false), 0);
  EXPECT_TRUE(again == expected) << "single elements";
}

TEST_P(ChainSource, TakesOperandsThatLieAnywhere) {
  std::vector<Buffer> x = filled(c.problem.inputs);
  std::vector<Buffer> expected = interpreted(x);
  std::vector<Buffer> y = empty(c.problem.outputs);
  for (std::vector<Buffer>* list : {&x, &y, &expected}) {
    for (Buffer& buffer : *list) buffer.shift(dtype_size(c.program.dtype));
  }
  expect_same(arguments(x, y), y, expected, "one element further");
}

TEST_P(ChainSource, WritesOverAnOperandOfItsSize) {
  if (c.program.periods[0] != c.program.numel) return;
  std::vector<Buffer> x = filled(c.problem.inputs);
  const std::vector<Buffer> expected = interpreted(x);
  std::vector<Buffer> y = empty(c.problem.outputs);
  cuda::ChainArguments given = arguments(x, y);
  given.y[0] = x[0].data();
  ASSERT_EQ(written(c.name)(given, cuda::can_run_wide(c.program, given)), 0);
  EXPECT_EQ(std::memcmp(x[0].data(), expected[0].data(), expected[0].bytes), 0);
}

TEST(ChainSourceText, DependsOnWhatIsReadAndNotOnSizes) {
  std::vector<ChainCase> cases = testing::chain_cases();
  cuda::ChainProgram larger = cases[0].program;
  for (int i = 0; i < larger.inputs; ++i) larger.periods[i] *= 2;
  larger.numel *= 2;
  EXPECT_EQ(cuda::chain_source(cases[0].program, cases[0].wanted),
            cuda::chain_source(larger, cases[0].wanted));
  larger.periods[1] = 1;
  EXPECT_NE(cuda::chain_source(cases[0].program, cases[0].wanted),
            cuda::chain_source(larger, cases[0].wanted));
}

TEST(ChainSourceText, IndicesOfRepeatedOperandsHave32BitsWhereAllElementsFit) {
  cuda::ChainProgram program = testing::chain_cases()[0].program;
  program.numel = int64_t{1} << 31;
  program.periods[0] = program.numel;
  program.periods[1] = 1024;
  const std::vector<bool> wanted(static_cast<size_t>(program.results), true);
  EXPECT_NE(cuda::chain_source(program, wanted).find("(i) % (p.periods[1])"), std::string::npos);
  program.numel = program.periods[0] = program.numel - 1024;
  EXPECT_NE(cuda::chain_source(program, wanted).find("unsigned(i) % unsigned(p.periods[1])"),
            std::string::npos);
}

class ChainCompiler : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Architectures, ChainCompiler, ::testing::Values(80, 90, 100),
                         [](const auto& info) { return "sm_" + std::to_string(info.param); });

TEST_P(ChainCompiler, TakesTheTextOfEveryCase) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "NVRTC is not built with sanitizers";
#endif
  const std::string why = cuda::why_missing(cuda::Nvidia::kNvrtc);
  if (!why.empty()) GTEST_SKIP() << "without NVRTC: " << why;
  for (const ChainCase& c : testing::chain_cases()) {
    const std::string text = cuda::chain_source(c.program, c.wanted);
    const cuda::CompiledText made = cuda::compile_text(text, GetParam());
    EXPECT_FALSE(made.code.empty()) << c.name << ": " << made.why << "\n" << text;
    if (made.code.empty()) return;
  }
}

TEST(ChainCompilerTest, SaysWhatIsWrongInOneLine) {
  const std::string why = cuda::why_missing(cuda::Nvidia::kNvrtc);
  if (!why.empty()) GTEST_SKIP() << "without NVRTC: " << why;
  const cuda::CompiledText made =
      cuda::compile_text("__device__ int chain() { return undefined; }\n", 90);
  EXPECT_TRUE(made.code.empty());
  EXPECT_NE(made.why.find("undefined"), std::string::npos) << made.why;
  EXPECT_EQ(made.why.find('\n'), std::string::npos);
}

// The PTX shows which reads and writes of a thread go together.
TEST(ChainCompilerTest, GivesPtxForACardThatNvrtcDoesNotKnow) {
  const std::string why = cuda::why_missing(cuda::Nvidia::kNvrtc);
  if (!why.empty()) GTEST_SKIP() << "without NVRTC: " << why;
  for (int i = 0; i < 3; ++i) {  // the first sample in three types
    const ChainCase c = testing::chain_cases()[static_cast<size_t>(i)];
    const auto made = cuda::compile_text(cuda::chain_source(c.program, c.wanted), 999);
    const size_t wide = made.code.find(".visible .entry chain_wide");
    ASSERT_NE(wide, std::string::npos) << made.why;
    EXPECT_NE(made.code.find("ld.global.v4", wide), std::string::npos) << c.name << made.code;
    EXPECT_NE(made.code.find("st.global.v4", wide), std::string::npos) << c.name << made.code;
  }
}

}  // namespace
}  // namespace ofsdp

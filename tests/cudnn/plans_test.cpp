// cuDNN plans attention and convolutions for an H200, and attention for an H100, from descriptions:
// cuDNN's heuristics and engines accept our graphs, and the generated code compiles. Nothing is
// run; driver.cpp takes the place of the driver.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/libraries.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr const char* kH200 =
    R"({"deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
"isTccDriver": 0, "l2CacheSize": 62914560, "maxCtasPerSM": 32, "maxRegistersPerSM": 65536,
"maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
"maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "memClockRateKHz": 3201000,
"multiProcessorCount": 132, "pciDeviceId": 0, "regsPerBlock": 65536,
"reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000, "supportCoopLaunch": 1,
"totalGlobalMem": 150000000000, "warpSize": 32, "maxBlockSize": [1024, 1024, 64],
"maxGridSize": [2147483647, 65535, 65535]})";
constexpr size_t kMinVersion = 90800;

CudnnTarget h200(bool tf32 = false) { return {nullptr, kH200, 90, tf32}; }

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    auto* version = function_of<size_t()>(Nvidia::kCudnn, "cudnnGetVersion");
    if (version == nullptr) GTEST_SKIP() << "cuDNN: " << why_missing(Nvidia::kCudnn);
    if (version() < kMinVersion) GTEST_SKIP() << "cuDNN " << version() << " needs a device";
  }
};

struct AttentionCase {
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys, width;
  bool causal = false;
  int64_t offset = 0;
};

// Rows of all heads side by side, as a product writes them.
HeadStrides side_by_side(int64_t heads, int64_t rows, int64_t width) {
  return {heads * rows * width, width, heads * width};
}

AttentionParams extent_of(const AttentionCase& c, DType dtype) {
  AttentionParams e;
  e.dtype = dtype;
  e.batch = c.batch;
  e.heads = c.heads;
  e.kv_heads = c.kv_heads;
  e.queries = c.queries;
  e.keys = c.keys;
  e.width = e.v_width = c.width;
  e.q = e.y = side_by_side(c.heads, c.queries, c.width);
  e.k = e.v = side_by_side(c.kv_heads, c.keys, c.width);
  e.scale = 0.125F;
  e.causal = c.causal;
  e.offset = c.offset;
  return e;
}

const AttentionCase kAttentionCases[] = {
    {"GPT-2 124M", 16, 12, 12, 1024, 1024, 64, true},
    {"BERT-base 128", 64, 12, 12, 128, 128, 64},
    {"BERT-base 512", 32, 12, 12, 512, 512, 64},
    {"groups of heads", 4, 32, 8, 1024, 1024, 128, true},
    {"one key head", 2, 8, 1, 512, 512, 64, true},
    {"odd length", 2, 4, 4, 77, 77, 32, true},
    {"other keys", 2, 4, 4, 64, 200, 64},
    {"behind a past", 2, 4, 4, 64, 200, 64, true, 136},
};

TEST_F(CudnnPlans, AttentionWhoseYLiesOtherwiseThanDy) {
  AttentionParams e = extent_of(kAttentionCases[0], DType::kBFloat16);
  const HeadStrides packed = e.y;
  e.q = e.k = e.v = e.y = {e.heads * e.queries * e.width, e.queries * e.width, e.width};
  EXPECT_NE(plan_attention(h200(), {e}, true), nullptr);
  EXPECT_NE(plan_attention_grad(h200(), {e}, packed), nullptr);
}

// q, k and v as one product writes them; their gradients fill one tensor: [batch, rows, 3, heads,
// width]. cuDNN needs no more room then, so it makes no copies of separate heads.
TEST_F(CudnnPlans, AttentionOfHeadsInOneTensor) {
  for (const AttentionCase& c : kAttentionCases) {
    if (c.heads != c.kv_heads || c.queries != c.keys) continue;
    const AttentionParams apart = extent_of(c, DType::kBFloat16);
    AttentionParams e = apart;
    e.q = e.k = e.v = {3 * apart.q.batch, c.width, 3 * apart.q.row};
    for (const bool may_vary : {false, true}) {
      CudnnTarget target = h200();
      target.may_vary = may_vary;
      const auto forward = plan_attention(target, {e}, true);
      const auto backward = plan_attention_grad(target, {e}, e.y);
      ASSERT_NE(forward, nullptr) << c.name;
      ASSERT_NE(backward, nullptr) << c.name;
      EXPECT_EQ(forward->workspace_bytes(),
                plan_attention(target, {apart}, true)->workspace_bytes());
      EXPECT_EQ(backward->workspace_bytes(),
                plan_attention_grad(target, {apart}, apart.y)->workspace_bytes());
    }
  }
}

TEST_F(CudnnPlans, AttentionOfSixteenBits) {
  for (const AttentionCase& c : kAttentionCases) {
    const AttentionParams e = extent_of(c, DType::kBFloat16);
    EXPECT_NE(plan_attention(h200(), {e}, true), nullptr) << c.name;
    EXPECT_NE(plan_attention_grad(h200(), {e}, e.y), nullptr) << c.name;
  }
  const AttentionParams e = extent_of(kAttentionCases[0], DType::kFloat16);
  EXPECT_NE(plan_attention(h200(), {e}, false), nullptr);
  EXPECT_NE(plan_attention_grad(h200(), {e}, e.y), nullptr);
}

// Sums in a fixed order need more room, and an engine that needs more than the limit is
// declined.
TEST_F(CudnnPlans, SumsInAnyOrderNeedLessRoom) {
  const AttentionParams e = extent_of(kAttentionCases[0], DType::kBFloat16);
  CudnnTarget target = h200();
  const auto fixed = plan_attention_grad(target, {e}, e.y);
  target.may_vary = true;
  const auto any = plan_attention_grad(target, {e}, e.y);
  ASSERT_NE(fixed, nullptr);
  ASSERT_NE(any, nullptr);
  EXPECT_LT(any->workspace_bytes(), fixed->workspace_bytes());
  target.may_vary = false;
  target.max_workspace = static_cast<int64_t>(fixed->workspace_bytes()) - 1;
  EXPECT_EQ(plan_attention_grad(target, {e}, e.y), nullptr);
}

// The gradient adds up dq in float32 for each block of 128 keys, in a fixed order, and delta, with
// 256 bytes more per block. So room grows as the products do. Our own gradient has 7 products, not
// 5: whether it would be faster depends on rates, not on the shape.
TEST_F(CudnnPlans, RoomOfTheGradientIsOneQueryGradientForEach128Keys) {
  const AttentionCase cases[] = {{"GPT-2 124M", 64, 12, 12, 1024, 1024, 64, true},
                                 {"BERT-base 128", 512, 12, 12, 128, 128, 64},
                                 {"BERT-base 512", 128, 12, 12, 512, 512, 64}};
  for (const AttentionCase& c : cases) {
    const AttentionParams e = extent_of(c, DType::kBFloat16);
    CudnnTarget target = h200();
    target.max_workspace = int64_t{4} << 30;
    const int64_t delta = 4 * e.batch * e.heads * e.queries, dq = delta * e.width, more = 256;
    for (const bool may_vary : {false, true}) {
      target.may_vary = may_vary;
      const auto plan = plan_attention_grad(target, {e}, e.y);
      ASSERT_NE(plan, nullptr) << c.name;
      const int64_t sums = may_vary ? 1 : e.keys / 128;
      EXPECT_EQ(static_cast<int64_t>(plan->workspace_bytes()), sums * dq + delta + more)
          << c.name << (may_vary ? ", any order" : ", fixed order");
    }
  }
}

TEST_F(CudnnPlans, AttentionOfFloat32IsDeclined) {
  const AttentionParams e = extent_of(kAttentionCases[0], DType::kFloat32);
  EXPECT_EQ(plan_attention(h200(), {e}, true), nullptr);
  EXPECT_EQ(plan_attention_grad(h200(), {e}, e.y), nullptr);
}

// An H200 with the memory and the memory clock of an H100 (SXM).
CudnnTarget h100() {
  CudnnTarget target = h200();
  const auto change = [&](const std::string& from, const std::string& to) {
    target.properties.replace(target.properties.find(from), from.size(), to);
  };
  change("NVIDIA H200", "NVIDIA H100 80GB HBM3");
  change("3201000", "2619000");
  change("150000000000", "85000000000");
  return target;
}

const AttentionCase kMaskedCases[] = {{"BERT-base 512", 32, 12, 12, 512, 512, 64},
                                      {"GPT-2 124M", 16, 12, 12, 1024, 1024, 64},
                                      {"groups of heads", 4, 32, 8, 1024, 1024, 128},
                                      {"one key head", 2, 8, 1, 512, 512, 64},
                                      {"odd length", 2, 4, 4, 77, 77, 32}};

struct MaskedCase {
  const char* name;
  ops::MaskUse mask = ops::MaskUse::kNone;
  bool causal = false;
  int64_t left = -1, right = -1;
  float softcap = 0;
  bool to_last_key = false;
  bool samples = false, heads = false, one_row = false;  // for a bias
};
constexpr ops::MaskUse kLengths = ops::MaskUse::kLengths, kBias = ops::MaskUse::kBias;
const MaskedCase kMasks[] = {
    {.name = "window", .causal = true, .left = 63},
    {.name = "window to both sides", .left = 64, .right = 64},
    {.name = "lengths", .mask = kLengths},
    {.name = "causal, lengths", .mask = kLengths, .causal = true},
    {.name = "causal, to the last key", .mask = kLengths, .causal = true, .to_last_key = true},
    {.name = "window, lengths", .mask = kLengths, .causal = true, .left = 63},
    {.name = "window to both sides, lengths", .mask = kLengths, .left = 64, .right = 64},
    {.name = "one bias", .mask = kBias},
    {.name = "bias of samples", .mask = kBias, .samples = true},
    {.name = "bias of heads", .mask = kBias, .heads = true},
    {.name = "bias of all", .mask = kBias, .samples = true, .heads = true},
    {.name = "bias of one row", .mask = kBias, .samples = true, .one_row = true},
    {.name = "causal, bias", .mask = kBias, .causal = true, .samples = true},
    {.name = "window, bias", .mask = kBias, .causal = true, .left = 63, .samples = true},
    {.name = "cap", .softcap = 50},
    {.name = "causal, cap", .causal = true, .softcap = 50},
    {.name = "window, cap", .causal = true, .left = 63, .softcap = 50},
    {.name = "lengths, cap", .mask = kLengths, .softcap = 50},
    {.name = "causal, lengths, cap", .mask = kLengths, .causal = true, .softcap = 50},
    {.name = "bias, cap", .mask = kBias, .softcap = 50, .samples = true},
    {.name = "causal, bias, cap", .mask = kBias, .causal = true, .softcap = 50, .samples = true}};

CudnnAttention masked(const AttentionCase& shape, const MaskedCase& m, DType dtype) {
  CudnnAttention a{extent_of(shape, dtype), m.mask, m.to_last_key, {}};
  a.e.causal = m.causal;
  a.e.left = m.left;
  a.e.right = m.right;
  a.e.softcap = m.softcap;
  a.bias = {m.samples ? shape.batch : 1, m.heads ? shape.heads : 1, m.one_row ? 1 : shape.queries,
            (shape.keys + 7) / 8 * 8};
  return a;
}

// Both cards for only one width: each kind of plan takes long enough.
std::vector<CudnnTarget> targets_of(const AttentionCase& shape) {
  if (shape.heads == 12) return {h100(), h200()};
  return {h200()};
}

TEST_F(CudnnPlans, MaskedAttention) {
  int planned = 0;
  for (const AttentionCase& shape : kMaskedCases) {
    for (const MaskedCase& m : kMasks) {
      const std::string name = std::string(shape.name) + ", " + m.name;
      for (const CudnnTarget& target : targets_of(shape)) {
        const CudnnAttention a = masked(shape, m, DType::kBFloat16);
        const auto forward = plan_attention(target, a, true);
        const auto backward = plan_attention_grad(target, a, a.e.y);
        EXPECT_NE(forward, nullptr) << name;
        EXPECT_NE(backward, nullptr) << name << ", backward";
        planned += forward != nullptr && backward != nullptr;
      }
    }
  }
  EXPECT_EQ(planned, 147);
}

struct ConvolutionCase {
  const char* name;
  std::vector<int64_t> x, w, y, strides, dilations, pads;
};

const ConvolutionCase kConvolutionCases[] = {
    {"3 x 3", {32, 64, 56, 56}, {64, 64, 3, 3}, {32, 64, 56, 56}, {1, 1}, {1, 1}, {1, 1}},
    {"1 x 1", {8, 64, 28, 28}, {256, 64, 1, 1}, {8, 256, 28, 28}, {1, 1}, {1, 1}, {0, 0}},
    {"first", {8, 3, 224, 224}, {64, 3, 7, 7}, {8, 64, 112, 112}, {2, 2}, {1, 1}, {3, 3}},
    {"digits", {32, 1, 28, 28}, {8, 1, 3, 3}, {32, 8, 28, 28}, {1, 1}, {1, 1}, {1, 1}},
    {"dilated", {4, 16, 32, 32}, {16, 16, 3, 3}, {4, 16, 32, 32}, {1, 1}, {2, 2}, {2, 2}},
    {"grouped", {8, 64, 28, 28}, {64, 16, 3, 3}, {8, 64, 28, 28}, {1, 1}, {1, 1}, {1, 1}},
    {"depthwise", {8, 64, 28, 28}, {64, 1, 3, 3}, {8, 64, 28, 28}, {1, 1}, {1, 1}, {1, 1}},
    {"patches", {8, 3, 224, 224}, {192, 3, 16, 16}, {8, 192, 14, 14}, {16, 16}, {1, 1}, {0, 0}},
    {"sound", {4, 80, 1, 3000}, {384, 80, 1, 3}, {4, 384, 1, 3000}, {1, 1}, {1, 1}, {0, 1}},
    {"volume",
     {2, 8, 16, 16, 16},
     {16, 8, 3, 3, 3},
     {2, 16, 16, 16, 16},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1}},
};

ConvolutionParams extent_of(const ConvolutionCase& c, DType dtype, bool channels_last) {
  return {dtype, c.x, c.w, c.y, c.strides, c.dilations, c.pads, c.pads, channels_last};
}

TEST_F(CudnnPlans, Convolutions) {
  for (const ConvolutionCase& c : kConvolutionCases) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const bool channels_last : {false, true}) {
        const ConvolutionParams e = extent_of(c, dtype, channels_last);
        const std::string name = std::string(c.name) + " " +
                                 std::to_string(static_cast<int>(dtype)) +
                                 (channels_last ? " channels last" : " plain");
        EXPECT_NE(plan_convolution(h200(), e, false), nullptr) << name;
        EXPECT_NE(plan_convolution(h200(), e, true), nullptr) << name << " with bias";
        EXPECT_NE(plan_convolution_grad_input(h200(), e), nullptr) << name;
        EXPECT_NE(plan_convolution_grad_weights(h200(), e), nullptr) << name;
        EXPECT_NE(plan_convolution(h200(true), e, true), nullptr) << name << " in TF32";
        EXPECT_NE(plan_convolution_grad_input(h200(true), e), nullptr) << name << " in TF32";
        EXPECT_NE(plan_convolution_grad_weights(h200(true), e), nullptr) << name << " in TF32";
      }
    }
  }
}

TEST_F(CudnnPlans, WhatDoesNotFitTogetherIsDeclined) {
  ConvolutionParams e = extent_of(kConvolutionCases[0], DType::kBFloat16, true);
  e.y[1] = 63;
  EXPECT_EQ(plan_convolution(h200(), e, false), nullptr);
  EXPECT_EQ(plan_convolution_grad_input(h200(), e), nullptr);
}

}  // namespace
}  // namespace ofsdp::kernels::cuda

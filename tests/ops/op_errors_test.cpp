// Messages from operators about wrong data and shapes: one line with the expected and the
// found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/core/philox.h"
#include "kernels/cpu/parallel.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"
#include "tests/support/op_values.h"

namespace ofsdp {
namespace op_errors_test {

using ::testing::AllOf;
using testing::GuardedBytes;
using ::testing::HasSubstr;

constexpr DType kF = DType::kFloat32;
constexpr DType kI = DType::kInt64;

struct Outcome {
  std::string error;                         // "" after a good run
  std::vector<std::vector<double>> outputs;  // plain
};

// Infers, plans and runs one operator on the sample's values.
Outcome run(const std::string& name, const SampleCase& sample) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get(name);
  const auto values = testing::make_values(sample);
  const std::vector<bool> wanted(sample.num_outputs, true);
  auto descs = op.infer({sample.attributes, sample.inputs, values.constants, wanted});
  if (!descs.ok()) return {descs.error().message(), {}};
  descs->resize(sample.num_outputs);
  const Problem problem{sample.attributes, sample.inputs, *descs, values.constants,
                        testing::kCheckNodeSeed};
  auto kernel = create_kernel(op, problem);
  if (!kernel.ok()) return {kernel.error().message(), {}};
  std::vector<GuardedBytes> bytes;
  std::vector<TensorView> inputs, outputs;
  bytes.reserve(sample.inputs.size() + descs->size() + 1);
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    bytes.emplace_back(sample.inputs[i].bytes(), uint8_t{0});
    testing::encode(values.inputs[i].values, sample.inputs[i], bytes.back().data());
    inputs.push_back({bytes.back().data(), sample.inputs[i]});
  }
  for (const TensorDesc& desc : *descs) {
    bytes.emplace_back(desc.bytes(), uint8_t{0xFF});
    outputs.push_back({bytes.back().data(), desc});
  }
  bytes.emplace_back((*kernel)->workspace_bytes(), uint8_t{0xFF});
  const StepContext step = testing::check_step();
  const Status status = (*kernel)->run({inputs, outputs, bytes.back().data(), &step});
  if (!status.ok()) {
    EXPECT_EQ(status.kind(), ErrorKind::kInput);
    return {status.message(), {}};
  }
  Outcome outcome;
  for (const TensorView& view : outputs) {
    outcome.outputs.push_back(testing::decode(view.desc, view.data));
  }
  return outcome;
}

auto numbers(std::vector<std::vector<double>> inputs) {
  return [inputs](size_t i, std::vector<double>& values) {
    if (i < inputs.size() && !inputs[i].empty()) values = inputs[i];
  };
}

TEST(LossErrors, ALabelOutsideOfTheClassesIsNamed) {
  for (const char* name : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    const SampleCase sample{.name = "x",
                            .attributes = {{"ignore_index", int64_t{-100}}},
                            .inputs = {{kF, {4, 10}}, {kI, {4}}},
                            .fill = numbers({{}, {3, -100, 10, 0}})};
    EXPECT_EQ(run(name, sample).error,
              "label 10 of sample 2 is outside 0..9 and not the ignore index -100");
  }
  const SampleCase image{.name = "x",
                         .inputs = {{kF, {2, 3, 4}}, {DType::kInt32, {2, 4}}},
                         .fill = numbers({{}, {0, 1, 2, 0, 0, -1, 2, 0}})};
  EXPECT_EQ(run("SoftmaxCrossEntropyLoss", image).error,
            "label -1 of sample 1 (position 1) is outside 0..2");
}

TEST(LossErrors, NoKeptLabelGivesZeroAndNotNaN) {
  const SampleCase sample{.name = "x",
                          .attributes = {{"ignore_index", int64_t{7}}},
                          .inputs = {{kF, {2, 10}}, {kI, {2}}},
                          .fill = numbers({{}, {7, 7}})};
  EXPECT_EQ(run("SoftmaxCrossEntropyLoss", sample).outputs[0], std::vector<double>{0});
  const SampleCase empty{.name = "x", .inputs = {{kF, {0, 10}}, {kI, {0}}}};
  EXPECT_EQ(run("NegativeLogLikelihoodLoss", empty).outputs[0], std::vector<double>{0});
}

// torch.nn.functional.cross_entropy([[1, 2, 3]], [2], label_smoothing=0.3) and without.
TEST(LossValues, LabelSmoothingIsPyTorchs) {
  SampleCase sample{.name = "x",
                    .attributes = {{"label_smoothing", 0.3f}},
                    .inputs = {{kF, {1, 3}}, {kI, {1}}},
                    .fill = numbers({{1, 2, 3}, {2}})};
  const double lse = 3 + std::log(1 + std::exp(-1) + std::exp(-2));
  const double smooth = 0.7 * (lse - 3) + 0.1 * (3 * lse - 6);
  EXPECT_NEAR(run("SoftmaxCrossEntropyLoss", sample).outputs[0][0], smooth, 1e-6);
  sample.attributes = {};
  EXPECT_NEAR(run("SoftmaxCrossEntropyLoss", sample).outputs[0][0], lse - 3, 1e-6);
}

TEST(LossErrors, ShapesThatDoNotFit) {
  const SampleCase labels{.name = "x", .inputs = {{kF, {4, 10}}, {kI, {5}}}};
  EXPECT_THAT(run("SoftmaxCrossEntropyLoss", labels).error,
              AllOf(HasSubstr("shape [4]"), HasSubstr("int64[5]")));
  const SampleCase targets{.name = "x", .inputs = {{kF, {4}}, {kF, {5}}}};
  EXPECT_THAT(run("ofsdp.MseLoss", targets).error,
              AllOf(HasSubstr("float32[4]"), HasSubstr("float32[5]")));
}

TEST(GatherErrors, AnIndexOutsideIsNamed) {
  const SampleCase sample{
      .name = "x", .inputs = {{kF, {5, 2}}, {kI, {3}}}, .fill = numbers({{}, {0, -5, 5}})};
  EXPECT_EQ(run("Gather", sample).error, "index 5 at element 2 is outside -5..4");
}

TEST(DivErrors, IntegersByZero) {
  const SampleCase sample{
      .name = "x", .inputs = {{kI, {2}}, {kI, {2}}}, .fill = numbers({{4, 5}, {2, 0}})};
  EXPECT_EQ(run("Div", sample).error, "element 1 of the integer divisor is 0");
}

TEST(DivValues, IntegersAreCutTowardsZeroAndWrap) {
  const SampleCase sample{.name = "x",
                          .inputs = {{DType::kInt32, {4}}, {DType::kInt32, {4}}},
                          .fill = numbers({{7, -7, -2147483648.0, 9}, {2, 2, -1, -4}})};
  EXPECT_EQ(run("Div", sample).outputs[0], (std::vector<double>{3, -3, -2147483648.0, -2}));
}

TEST(CastValues, FloatsAreClampedToTheRangeOfIntegers) {
  const SampleCase sample{.name = "x",
                          .attributes = {{"to", int64_t{3}}},  // int8
                          .inputs = {{kF, {6}}},
                          .fill = numbers({{1.9, -1.9, 300, -300, NAN, INFINITY}})};
  EXPECT_EQ(run("Cast", sample).outputs[0], (std::vector<double>{1, -1, 127, -128, 0, 127}));
}

TEST(ShapeErrors, NameBothSides) {
  const SampleCase reshape{.name = "x",
                           .inputs = {{kF, {2, 3}}, {kI, {2}}},
                           .fill = numbers({{}, {4, -1}}),
                           .constant_inputs = {1}};
  EXPECT_THAT(run("Reshape", reshape).error, AllOf(HasSubstr("[2, 3]"), HasSubstr("[4, -1]")));
  const SampleCase wrapping{.name = "x",
                            .inputs = {{kF, {2, 3}}, {kI, {3}}},
                            .fill = numbers({{}, {0x1p62, 4, -1}}),
                            .constant_inputs = {1}};
  EXPECT_THAT(run("Reshape", wrapping).error, HasSubstr("overflow"));
  const SampleCase add{.name = "x", .inputs = {{kF, {2, 3}}, {kF, {4}}}};
  EXPECT_EQ(run("Add", add).error, "shapes [2, 3] and [4] do not broadcast");
  const SampleCase mixed{.name = "x", .inputs = {{kF, {2}}, {kI, {2}}}};
  EXPECT_THAT(run("Mul", mixed).error, AllOf(HasSubstr("float32[2]"), HasSubstr("int64[2]")));
  const SampleCase squeeze{.name = "x",
                           .inputs = {{kF, {2, 3}}, {kI, {1}}},
                           .fill = numbers({{}, {1}}),
                           .constant_inputs = {1}};
  EXPECT_THAT(run("Squeeze", squeeze).error, HasSubstr("size 3, expected 1"));
  const SampleCase softmax{
      .name = "x", .attributes = {{"axis", int64_t{2}}}, .inputs = {{kF, {2, 3}}}};
  EXPECT_EQ(run("Softmax", softmax).error, "axis 2 is outside -2..1");
}

TEST(ShapeErrors, AnEmptyWindowIsNoConvolution) {
  const SampleCase conv{.name = "x", .inputs = {{kF, {1, 2, 5, 5}}, {kF, {2, 3, 0, 3}}}};
  EXPECT_EQ(run("ConvTranspose", conv).error,
            "expected W with at least one element a spatial axis, found [2, 3, 0, 3]");
}

TEST(NaNs, StayVisible) {
  const std::vector<double> row = {1, NAN, 2, 3};
  const SampleCase sample{.name = "x", .inputs = {{kF, {1, 4}}}, .fill = numbers({row})};
  for (const char* name : {"Exp", "Tanh", "Sigmoid", "Sqrt"}) {
    EXPECT_TRUE(std::isnan(run(name, sample).outputs[0][1])) << name;
  }
  for (const char* name : {"Softmax", "LogSoftmax"}) {
    const auto y = run(name, sample).outputs[0];
    for (double v : y) EXPECT_TRUE(std::isnan(v)) << name;
  }
  EXPECT_TRUE(std::isnan(run("ReduceSum", sample).outputs[0][0]));
}

TEST(Exp, EndsOfTheRange) {
  const SampleCase sample{.name = "x",
                          .inputs = {{kF, {6}}},
                          .fill = numbers({{88.7, 88.73, -87, -103, -104, -INFINITY}})};
  const auto y = run("Exp", sample).outputs[0];
  EXPECT_NEAR(y[0] / std::exp(static_cast<double>(88.7f)), 1, 1e-6);
  EXPECT_EQ(y[1], INFINITY);
  EXPECT_NEAR(y[2] / std::exp(-87.0), 1, 1e-6);
  EXPECT_GT(y[3], 0);  // subnormal
  EXPECT_EQ(y[4], 0);
  EXPECT_EQ(y[5], 0);
}

TEST(Dropout, DependsOnTheSampleAndNotOnItsPlace) {
  const SampleCase all{.name = "x",
                       .inputs = {{kF, {4, 200}}, {kF, {}}, {DType::kBool, {}}},
                       .fill = numbers({std::vector<double>(800, 1.0), {0.5}, {1}}),
                       .constant_inputs = {1, 2}};
  const auto y = run("Dropout", all).outputs[0];
  // check_step() has samples 5, 0, 131, 7 in this order.
  const PhiloxKey key = philox_key(11, testing::kCheckNodeSeed, 3);
  int kept = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const uint64_t sample = std::array<uint64_t, 4>{5, 0, 131, 7}[i / 200];
    const bool keeps = philox_element(key, sample, i % 200) >= 0x80000000u;
    ASSERT_EQ(y[i], keeps ? 2.0 : 0.0) << i;
    kept += keeps;
  }
  EXPECT_NEAR(kept, 400, 80);
}

TEST(GridSampleErrors, OperandsAndModes) {
  SampleCase sample{.name = "x", .inputs = {{kF, {2, 3, 5}}, {kF, {2, 4, 1}}}};
  EXPECT_EQ(run("GridSample", sample).error,
            "expected X [N, C, H, W] or [N, C, D, H, W], found float32[2, 3, 5]");
  sample.inputs = {{kF, {2, 3, 5, 6}}, {kF, {2, 4, 4, 3}}};
  EXPECT_EQ(run("GridSample", sample).error,
            "expected a grid of 4 axes, [2, ..., 2], for X float32[2, 3, 5, 6], found "
            "float32[2, 4, 4, 3]");
  sample.inputs[1] = {kF, {2, 4, 4, 2}};
  sample.attributes = {{"mode", std::string("area")}};
  EXPECT_EQ(run("GridSample", sample).error,
            "attribute 'mode': expected one of cubic, linear, nearest, found 'area'");
}

TEST(GridSampleValues, APlaceThatIsNoNumberGivesNaN) {
  for (const char* padding : {"zeros", "border", "reflection"}) {
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      const SampleCase sample{
          .name = "x",
          .attributes = {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}},
          .inputs = {{kF, {1, 1, 3, 3}}, {kF, {1, 1, 3, 2}}},
          .fill = numbers({{1, 2, 3, 4, 5, 6, 7, 8, 9}, {NAN, 0, 0, INFINITY, 0, 0}})};
      const auto y = run("GridSample", sample).outputs[0];
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1])) << padding << ' ' << mode;
      EXPECT_NEAR(y[2], 5, 1e-6) << padding << ' ' << mode;
    }
  }
}

TEST(DftErrors, SignalsAxesAndLengths) {
  SampleCase sample{.name = "x", .inputs = {{kF, {2, 8, 3}}}};
  EXPECT_EQ(run("DFT", sample).error, "expected a signal [..., 1 or 2], found float32[2, 8, 3]");
  sample.inputs = {{kF, {2, 8, 2}}, {kI, {}}, {kI, {}}};
  sample.constant_inputs = {1, 2};
  sample.fill = numbers({{}, {8}, {2}});
  EXPECT_EQ(run("DFT", sample).error,
            "axis 2 of float32[2, 8, 2] holds the parts of a number, expected one before it");
  sample.fill = numbers({{}, {0}, {1}});
  EXPECT_EQ(run("DFT", sample).error,
            "expected a dft_length of 1 to 2147483648, found 0 for float32[2, 8, 2]");
  sample.attributes = {{"onesided", int64_t{1}}};
  EXPECT_EQ(run("DFT", sample).error, "expected a signal [..., 1], found float32[2, 8, 2]");
}

TEST(DetErrors, MatricesThatAreNotSquare) {
  const SampleCase sample{.name = "x", .inputs = {{kF, {2, 3, 4}}}};
  EXPECT_EQ(run("Det", sample).error, "expected square matrices, found float32[2, 3, 4]");
}

TEST(DetValues, ANaNStaysNaN) {
  const SampleCase sample{.name = "x", .inputs = {{kF, {2, 2}}}, .fill = numbers({{1, 2, NAN, 4}})};
  EXPECT_TRUE(std::isnan(run("Det", sample).outputs[0][0]));
}

TEST(Threads, ChangeNoBits) {
  const std::vector<std::pair<const char*, SampleCase>> cases = {
      {"ofsdp.SumTo",
       {.name = "x",
        .attributes = {{"shape", std::vector<int64_t>{700}}},
        .inputs = {{kF, {300, 700}}}}},
      {"ofsdp.SumTo",
       {.name = "x",
        .attributes = {{"shape", std::vector<int64_t>{33, 1}}},
        .inputs = {{kF, {50, 33, 90}}}}},
      {"Softmax", {.name = "x", .inputs = {{kF, {300, 333}}}}},
      {"LogSoftmax",
       {.name = "x", .attributes = {{"axis", int64_t{1}}}, .inputs = {{kF, {5, 30, 333}}}}},
      {"Transpose", {.name = "x", .inputs = {{kF, {301, 403}}}}},
      {"Add", {.name = "x", .inputs = {{kF, {301, 1, 70}}, {kF, {17, 1}}}}},
      {"Exp", {.name = "x", .inputs = {{kF, {100003}}}}},
      {"ofsdp.MseLoss", {.name = "x", .inputs = {{kF, {100003}}, {kF, {100003}}}}},
      {"Dropout",
       {.name = "x",
        .inputs = {{kF, {4, 30001}}, {kF, {}}, {DType::kBool, {}}},
        .fill = numbers({{}, {0.5}, {1}}),
        .constant_inputs = {1, 2}}},
      {"ReduceMean", {.name = "x", .inputs = {{kF, {300, 700}}}}},
      {"GridSample", {.name = "x", .inputs = {{kF, {2, 40, 9, 9}}, {kF, {2, 30, 31, 2}}}}},
      {"ofsdp.GridSampleGradInput",
       {.name = "x",
        .attributes = {{"x_shape", std::vector<int64_t>{2, 40, 9, 9}}},
        .inputs = {{kF, {2, 40, 30, 31}}, {kF, {2, 30, 31, 2}}}}},
      {"ofsdp.GridSampleGradGrid",
       {.name = "x", .inputs = {{kF, {2, 40, 30, 31}}, {kF, {2, 40, 9, 9}}, {kF, {2, 30, 31, 2}}}}},
      {"DFT", {.name = "x", .inputs = {{kF, {301, 60, 2}}}}},
      {"Det", {.name = "x", .inputs = {{kF, {1001, 7, 7}}}}},
      {"ofsdp.DetGrad", {.name = "x", .inputs = {{kF, {1001}}, {kF, {1001, 7, 7}}}}}};
  const int threads = pool_threads();
  for (const auto& [name, sample] : cases) {
    set_pool_threads(1);
    const auto alone = run(name, sample).outputs;
    set_pool_threads(3);
    EXPECT_EQ(run(name, sample).outputs, alone) << name;
  }
  set_pool_threads(threads);
}

}  // namespace op_errors_test
}  // namespace ofsdp

// Properties of Gemm, MatMul, Conv and MaxPool that conformance does not check: NaN is never
// hidden, the first wins a tie, and wrong shapes are refused with both numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace dense_operators_test {

using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

TensorDesc tensor(Shape shape) { return {DType::kFloat32, std::move(shape)}; }

struct alignas(64) Line {
  float values[16];
};

class Operators : public ::testing::Test {
 protected:
  // Runs `op` on plain operands (float32); outputs 0 and 2 as doubles.
  std::vector<std::vector<double>> run(const std::string& op, const Attributes& attributes,
                                       const std::vector<std::pair<Shape, std::vector<float>>>& in,
                                       const std::vector<bool>& wanted = {true}) {
    const OpDef& def = registry_.get(op);
    InferContext context{attributes, {}, {}, wanted};
    for (const auto& [shape, values] : in) context.inputs.push_back(tensor(shape));
    context.constants.resize(in.size());
    Result<std::vector<TensorDesc>> outputs = def.infer(context);
    OFSDP_CHECK(outputs.ok(), "{}", outputs.error().message());
    Problem problem;
    problem.attributes = attributes;
    problem.inputs = context.inputs;
    problem.outputs = *outputs;
    problem.outputs.resize(wanted.size());
    problem.constants = context.constants;
    std::vector<std::vector<Line>> memory;
    std::vector<TensorView> inputs, views;
    for (size_t i = 0; i < in.size(); ++i) {
      inputs.push_back(view(memory, problem.inputs[i]));
      std::copy(in[i].second.begin(), in[i].second.end(), inputs.back().as<float>());
    }
    for (const TensorDesc& desc : problem.outputs) views.push_back(view(memory, desc));
    Result<std::unique_ptr<Kernel>> kernel = create_kernel(def, problem);
    OFSDP_CHECK(kernel.ok(), "{}", kernel.error().message());
    memory.emplace_back((*kernel)->workspace_bytes() / sizeof(Line) + 1);
    const StepContext step;
    const Status status =
        (*kernel)->run({inputs, views, reinterpret_cast<std::byte*>(memory.back().data()), &step});
    OFSDP_CHECK(status.ok(), "{}", status.message());
    std::vector<std::vector<double>> results;
    for (const TensorView& v : views) {
      results.push_back(v.desc.present() ? to_doubles(v.desc, v.data) : std::vector<double>());
    }
    return results;
  }

  std::string refusal(const std::string& op, const Attributes& attributes,
                      std::vector<TensorDesc> inputs) {
    InferContext context{attributes, std::move(inputs), {}, {true}};
    context.constants.resize(context.inputs.size());
    Result<std::vector<TensorDesc>> outputs = registry_.get(op).infer(context);
    return outputs.ok() ? "accepted" : outputs.error().message();
  }

  const Registry registry_ = make_registry();

 private:
  static TensorView view(std::vector<std::vector<Line>>& memory, const TensorDesc& desc) {
    if (!desc.present()) return {nullptr, desc};
    memory.emplace_back(desc.bytes() / sizeof(Line) + 1);
    return {reinterpret_cast<std::byte*>(memory.back().data()), desc};
  }
};

const Attributes kRelu{{"ofsdp_activation", std::string("relu")}};

// oneDNN's own relu would give 0 here: [Note: oneDNN's relu hides NaN].
TEST_F(Operators, FusedReluKeepsNaN) {
  const auto gemm = run("Gemm", kRelu, {{{1, 2}, {NAN, 1}}, {{2, 2}, {1, 1, 1, 1}}});
  EXPECT_TRUE(std::isnan(gemm[0][0]));
  const auto conv = run("Conv", kRelu, {{{1, 1, 2, 2}, {1, 2, NAN, -4}}, {{1, 1, 1, 1}, {1}}});
  EXPECT_TRUE(std::isnan(conv[0][2]));
  EXPECT_EQ(conv[0][1], 2);
  EXPECT_EQ(conv[0][3], 0);
}

TEST_F(Operators, MaxPoolLetsNaNWinAndTiesGoToTheFirst) {
  const Attributes window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  const std::vector<float> x = {1, 3, NAN, 9, -INFINITY, -INFINITY,  //
                                3, 2, 8,   7, -INFINITY, -INFINITY};
  const auto y = run("MaxPool", window, {{{1, 1, 2, 6}, x}}, {true, true, true});
  EXPECT_EQ(y[0][0], 3);
  EXPECT_EQ(y[2][0], 1) << "the first of two 3s";
  EXPECT_EQ(y[1][0], 1);
  EXPECT_TRUE(std::isnan(y[0][1]));
  EXPECT_EQ(y[0][2], -INFINITY);
  EXPECT_EQ(y[2][2], 0);
}

TEST_F(Operators, FusedReluOfMaxPoolStopsTheGradient) {
  Attributes window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  window.set("ofsdp_activation", std::string("relu"));
  const std::vector<float> x = {-1, -3, 1, 0, NAN, 1,  //
                                -3, -2, 2, 5, 1,   1};
  const auto y = run("MaxPool", window, {{{1, 1, 2, 6}, x}}, {true, false, true});
  EXPECT_EQ(y[0][0], 0);
  EXPECT_EQ(y[2][0], 255) << "no winner";
  EXPECT_EQ(y[0][1], 5);
  EXPECT_EQ(y[2][1], 3);
  EXPECT_TRUE(std::isnan(y[0][2]));
}

TEST_F(Operators, WrongShapesAreRefusedWithBothNumbers) {
  EXPECT_THAT(refusal("Gemm", {}, {tensor({2, 3}), tensor({4, 5})}), HasSubstr("3 and 4"));
  EXPECT_THAT(refusal("Gemm", {}, {tensor({2, 3}), tensor({3, 5}), tensor({4})}),
              HasSubstr("[4] does not broadcast to [2, 5]"));
  EXPECT_THAT(refusal("MatMul", {}, {tensor({7, 2, 3}), tensor({4, 5})}), HasSubstr("3 and 4"));
  EXPECT_THAT(refusal("MatMul", {}, {tensor({7, 2, 3}), tensor({6, 3, 5})}),
              HasSubstr("[7] and [6] do not broadcast"));
  EXPECT_THAT(refusal("Conv", {}, {tensor({1, 16, 8, 8}), tensor({64, 32, 3, 3})}),
              HasSubstr("expected 32 input channels"));
  EXPECT_THAT(refusal("Conv", {}, {tensor({1, 2, 2, 8}), tensor({4, 2, 3, 3})}),
              HasSubstr("spatial axis 0 has 2 positions, kernel 3"));
  EXPECT_THAT(refusal("Conv", {{"strides", Ints{1}}}, {tensor({1, 2, 8, 8}), tensor({4, 2, 3, 3})}),
              HasSubstr("strides: expected 2 values, found 1"));
  EXPECT_THAT(refusal("MaxPool", {{"kernel_shape", Ints{2}}}, {tensor({1, 2, 8, 8})}),
              HasSubstr("expected an input of 3 axes"));
  EXPECT_THAT(refusal("MaxPool", {}, {tensor({1, 2, 8, 8})}), HasSubstr("kernel_shape"));
}

}  // namespace dense_operators_test
}  // namespace ofsdp

// Every operator in the registry against its reference and sample cases; see
// tests/support/op_check.h. A registered operator is tested without further work. At the end,
// planted mistakes that the checks must notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"
#include "tests/support/operator_names.h"
#include "tests/support/samples.h"

namespace ofsdp {
namespace conformance_test {

using ::testing::HasSubstr;

std::vector<std::string> all_operators() {
  return operator_names([](const OpDef&) { return true; });
}

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  const Registry registry_ = make_registry();
  const OpDef& op_ = registry_.get(GetParam());
};

TEST_P(Conformance, IsDefined) { EXPECT_EQ(testing::check_definition(op_), ""); }

TEST_P(Conformance, KernelsAgreeWithTheReference) {
  ASSERT_EQ(testing::check_definition(op_), "");
  for (const SampleCase& sample : testing::samples_of(op_)) {
    EXPECT_EQ(testing::check_kernels(op_, sample), "") << sample.name;
  }
}

TEST_P(Conformance, GradientAgreesWithFiniteDifferences) {
  ASSERT_EQ(testing::check_definition(op_), "");
  if (op_.grad == nullptr && !is_composite(op_)) GTEST_SKIP() << "no gradient";
  for (const SampleCase& sample : testing::samples_of(op_)) {
    if (!sample.check_grad) continue;
    EXPECT_EQ(testing::check_gradient(registry_, op_, sample), "") << sample.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, Conformance, ::testing::ValuesIn(all_operators()),
                         operator_test_name);

// A gradient without the part through the scores would be wrong, so it is refused.
TEST(GradientOf, AttentionRefusesAGradientOfItsScores) {
  const Registry registry = make_registry();
  const TensorDesc heads{DType::kFloat32, {1, 2, 3, 4}};
  const SampleCase sample{.name = "scores", .inputs = {heads, heads, heads}, .num_outputs = 4};
  EXPECT_THAT(testing::check_gradient(registry, registry.get("Attention"), sample),
              HasSubstr("expected no gradient of output 3 (qk_matmul_output)"));
}

// --- the checks themselves, on a Relu with one fault ---

using Run = Status (*)(const KernelArgs&);

template <Run run>
std::unique_ptr<Kernel> create(const Problem&) {
  return make_kernel(run);
}

constexpr int64_t kCount = 37;  // elements in the sample

void relu(const KernelArgs& a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = a.in<float>(0)[i];
    a.out<float>(0)[i] = x < 0 ? 0 : x;
  }
}

Status right(const KernelArgs& a) {
  relu(a, kCount);
  return ok_status();
}
Status inexact(const KernelArgs& a) {
  relu(a, kCount);
  a.out<float>(0)[5] += 1e-3f;
  return ok_status();
}
Status incomplete(const KernelArgs& a) {
  relu(a, kCount - 1);
  return ok_status();
}
Status overrun(const KernelArgs& a) {
  relu(a, kCount);
  a.out<float>(0)[kCount] = 0;
  return ok_status();
}
Status scribbling(const KernelArgs& a) {
  relu(a, kCount);
  if (a.outputs[0].data != a.inputs[0].data) a.inputs[0].as<float>()[0] = 7;
  return ok_status();
}
Status not_inplace(const KernelArgs& a) {
  for (int64_t i = 0; i < kCount; ++i) a.out<float>(0)[i] = 0;
  for (int64_t i = 0; i < kCount; ++i) a.out<float>(0)[i] += std::max(a.in<float>(0)[i], 0.0f);
  return ok_status();
}
Status failing(const KernelArgs&) { return input_error("row 3"); }

template <Run run>
std::string findings() {
  OpDef op = make_registry().get("Relu");
  op.cpu = {{"broken", op.cpu[0].accepts, create<run>}};
  return testing::check_kernels(op, {.name = "x", .inputs = {{DType::kFloat32, {kCount}}}});
}

TEST(OpCheck, AcceptsARightKernel) { EXPECT_EQ(findings<right>(), ""); }

TEST(OpCheck, NoticesAWrongKernel) {
  EXPECT_THAT(findings<inexact>(), HasSubstr("Relu/x broken: output 0 element 5"));
  EXPECT_THAT(findings<incomplete>(), HasSubstr("element 36"));
  EXPECT_THAT(findings<incomplete>(), HasSubstr("other bits when run again"));
  EXPECT_THAT(findings<overrun>(), HasSubstr("wrote outside"));
  EXPECT_THAT(findings<scribbling>(), HasSubstr("input 0 was changed"));
  EXPECT_THAT(findings<not_inplace>(), HasSubstr("other bits in place of input 0"));
  EXPECT_THAT(findings<failing>(), HasSubstr("run failed: row 3"));
}

TEST(OpCheck, NoticesAMissingKernel) {
  OpDef op = make_registry().get("Relu");
  op.cpu = {{"none", [](const Problem&) { return false; }, create<right>}};
  EXPECT_THAT(testing::check_kernels(op, {.name = "x", .inputs = {{DType::kFloat32, {3}}}}),
              HasSubstr("no implementation accepts"));
}

TEST(OpCheck, NoticesAMissingDefinition) {
  OpDef op = make_registry().get("Relu");
  op.name = "Unheard";
  EXPECT_EQ(testing::check_definition(op), "Unheard: no samples\n");
  op = make_registry().get("Relu");
  op.cpu.clear();
  EXPECT_EQ(testing::check_definition(op), "Relu: neither an implementation nor a view\n");
}

TEST(OpCheck, NoticesAWrongGradient) {
  const Registry registry = make_registry();
  const SampleCase sample{.name = "x", .inputs = {{DType::kFloat32, {3, 4}}}};
  OpDef op = registry.get("Relu");
  EXPECT_EQ(testing::check_gradient(registry, op, sample), "");
  op.grad = [](GradBuilder& b) { b.set_grad(0, b.grad_output(0)); };
  EXPECT_THAT(testing::check_gradient(registry, op, sample), HasSubstr("finite difference 0"));
  op.grad = [](GradBuilder&) {};
  EXPECT_THAT(testing::check_gradient(registry, op, sample), HasSubstr("input 0 got no gradient"));
  op.grad = [](GradBuilder& b) { b.set_grad(0, b.emit1("ofsdp.CollapseAll", {b.grad_output(0)})); };
  EXPECT_THAT(testing::check_gradient(registry, op, sample), HasSubstr("got a gradient"));
}

}  // namespace conformance_test
}  // namespace ofsdp

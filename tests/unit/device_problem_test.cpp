// A problem in the C form of device libraries and back; and that the two C interfaces, of devices
// and of plug-ins, have no name in common (a struct of one name and two layouts would be merged by
// the linker).
#include "kernels/core/device_problem.h"

#include <gtest/gtest.h>

#include "kernels/core/device_table.h"
#include "plugins/ofsdp_plugin.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

template <typename T>
ConstantPtr constant(DType dtype, Shape shape, const std::vector<T>& values) {
  return make_constant<T>(dtype, std::move(shape), values);
}

Problem made() {
  Problem p;
  p.attributes = {{"axis", int64_t{-1}},
                  {"alpha", 0.5f},
                  {"mode", std::string("linear")},
                  {"perm", std::vector<int64_t>{2, 0, 1}},
                  {"scales", std::vector<float>{1.5f, -2}},
                  {"steps", std::vector<std::string>{"Add 0 1", "", "Neg 2"}},
                  {"value", constant<float>(DType::kFloat32, {2}, {3, 4})}};
  p.inputs = {{DType::kFloat16, {2, 3, 4, 5}, Layout::kChannelsLast},
              {},
              {DType::kInt64, {0}},
              {DType::kBool, {}}};
  p.constants = {nullptr, nullptr, constant<int64_t>(DType::kInt64, {0}, {}),
                 constant<uint8_t>(DType::kBool, {}, {1})};
  p.outputs = {{DType::kFloat16, {2, 3}}, {}};
  p.node_seed = 0x123456789abcdef0u;
  return p;
}

void expect_same(const Constant* a, const Constant* b) {
  ASSERT_EQ(a == nullptr, b == nullptr);
  if (a == nullptr) return;
  EXPECT_EQ(a->desc, b->desc);
  EXPECT_EQ(a->bytes, b->bytes);
}

TEST(DeviceProblem, IsTheSameBehindTheCInterface) {
  const Problem first = made();
  const Problem again = decode(EncodedProblem("ofsdp.Op", first).get());
  EXPECT_EQ(first.inputs, again.inputs);
  EXPECT_EQ(first.outputs, again.outputs);
  EXPECT_EQ(first.node_seed, again.node_seed);
  for (size_t i = 0; i < first.inputs.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(first.constant(i), again.constant(i));
  }
  EXPECT_EQ(first.attributes.text(), again.attributes.text());
  EXPECT_EQ(first.attributes.get("steps", std::vector<std::string>{}),
            again.attributes.get("steps", std::vector<std::string>{}));
  expect_same(first.attributes.get("value", ConstantPtr{}).get(),
              again.attributes.get("value", ConstantPtr{}).get());
}

TEST(DeviceProblem, NamesItsOperator) {
  EXPECT_STREQ(EncodedProblem("ofsdp.Op", made()).get().op, "ofsdp.Op");
}

}  // namespace
}  // namespace ofsdp

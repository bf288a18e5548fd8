// Every differentiable operator over axes of size 1 and over empty ones. The cases come from the
// operator's own: every axis of one size is set to 1, or to 0, in all inputs at once. If infer
// accepts the case, it is checked as in conformance_test.cpp. Inputs are dense by design (kernels
// never see a stride), so a use after a Transpose or a Slice reads the dense result. Channels last
// is the only other order, and check_kernels goes through it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"
#include "tests/support/op_values.h"
#include "tests/support/operator_names.h"
#include "tests/support/samples.h"

namespace ofsdp {
namespace sample_cases_test {

std::vector<std::string> differentiable() {
  return operator_names([](const OpDef& op) { return op.grad != nullptr; });
}

// Integers that are data (labels, indices, positions) fit only the sizes in their sample.
bool has_integer_data(const SampleCase& sample) {
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const bool known = std::ranges::count(sample.constant_inputs, i) > 0;
    if (is_integer(sample.inputs[i].dtype) && !known) return true;
  }
  return false;
}

bool small(const SampleCase& sample) {
  return sample.check_grad && std::ranges::all_of(sample.inputs, [](const TensorDesc& d) {
           return !d.present() || d.numel() <= 2000;
         });
}

std::set<int64_t> sizes(const SampleCase& sample) {
  std::set<int64_t> found;
  for (const TensorDesc& d : sample.inputs)
    found.insert(d.shape.axes().begin(), d.shape.axes().end());
  return found;
}

SampleCase resized(SampleCase sample, int64_t from, int64_t to) {
  for (size_t k = 0; k < sample.inputs.size(); ++k) {
    TensorDesc& d = sample.inputs[k];
    if (!is_floating(d.dtype) || std::ranges::count(sample.constant_inputs, k) > 0) continue;
    for (int i = 0; i < d.shape.rank(); ++i) {
      if (d.shape[i] == from) d.shape[i] = to;
    }
  }
  sample.name += format_text(" with {} for {}", to, from);
  return sample;
}

bool has_axis(const SampleCase& sample, int64_t size) {
  return std::ranges::any_of(sample.inputs, [&](const TensorDesc& d) {
    return is_floating(d.dtype) && std::ranges::count(d.shape.axes(), size) > 0;
  });
}

class SampleCases : public ::testing::TestWithParam<std::string> {
 protected:
  bool accepted(const SampleCase& sample) const {
    const testing::CaseValues values = testing::make_values(sample);
    return op_
        .infer({sample.attributes, sample.inputs, values.constants,
                std::vector<bool>(sample.num_outputs, true)})
        .ok();
  }

  // Random operators have no finite differences, and integer data fit no other sizes.
  bool can_resize() const {
    return std::ranges::any_of(testing::samples_of(op_), [](const SampleCase& sample) {
      return small(sample) && !has_integer_data(sample);
    });
  }

  // The number of cases with an axis of `size`.
  int check(int64_t size) const {
    int checked = 0;
    for (const SampleCase& sample : testing::samples_of(op_)) {
      if (!small(sample)) continue;
      if (has_axis(sample, size)) ++checked;  // by conformance_test.cpp
      if (has_integer_data(sample)) continue;
      for (int64_t from : sizes(sample)) {
        if (from == size) continue;
        const SampleCase made = resized(sample, from, size);
        if (!has_axis(made, size) || !accepted(made)) continue;
        EXPECT_EQ(testing::check_kernels(op_, made), "");
        EXPECT_EQ(testing::check_gradient(registry_, op_, made), "");
        ++checked;
      }
    }
    return checked;
  }

  const Registry registry_ = make_registry();
  const OpDef& op_ = registry_.get(GetParam());
};

TEST_P(SampleCases, OfOneElement) {
  if (!can_resize()) GTEST_SKIP() << "every case is random or has integer data";
  EXPECT_GT(check(1), 0);
}

TEST_P(SampleCases, OfNothing) {
  if (!can_resize()) GTEST_SKIP() << "every case is random or has integer data";
  EXPECT_GT(check(0), 0);
}

INSTANTIATE_TEST_SUITE_P(Operators, SampleCases, ::testing::ValuesIn(differentiable()),
                         operator_test_name);

}  // namespace sample_cases_test
}  // namespace ofsdp

// Fusion: the fixture for tests of fusion rules. A test builds a graph in an exporter's spelling
// and calls expect_same: the named rules fire, they can be switched off, and loss and gradients of
// all parameters are the same either way.
//
// Ownership: values; one graph a test. Threads: one.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "importer/passes/fusion/fusion.h"
#include "importer/passes/passes.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/run_graph.h"

namespace ofsdp::testing {

class Fusion : public ::testing::Test {
 protected:
  ValueId number(double value, DType dtype = DType::kFloat32) {
    Constant made{{dtype, Shape{}}, std::vector<std::byte>(dtype_size(dtype))};
    from_doubles({&value, 1}, made.desc, made.bytes.data());
    return GraphEditor(maker.graph)
        .add_constant("number", std::make_shared<const Constant>(std::move(made)));
  }
  ValueId table(const Shape& shape, const std::vector<float>& values) {
    return GraphEditor(maker.graph)
        .add_constant("table", make_constant<float>(DType::kFloat32, shape, values));
  }
  ValueId op(const char* name, const std::vector<ValueId>& inputs, const Attributes& a = {}) {
    return maker.node(name, format_text("{}{}", name, ++count_), inputs, a);
  }
  std::vector<ValueId> ops(const char* name, const std::vector<ValueId>& inputs,
                           const Attributes& a, size_t outputs) {
    const std::string node = format_text("{}{}", name, ++count_);
    return *GraphEditor(maker.graph).add(name, node, inputs, a, outputs);
  }

  // Gradients for all parameters and the loss, with and without the named fusions.
  void expect_same(ValueId y, const std::set<std::string>& rules, double tolerance = 2e-5) {
    const ValueId target =
        maker.input("target", {DType::kFloat32, maker.graph.value(y).desc.shape});
    maker.graph.terms = {{op("ofsdp.MseLoss", {y, target})}};
    compare(rules, tolerance);
  }

  void compare(const std::set<std::string>& rules, double tolerance) {
    const std::vector<ValueId> wanted{maker.graph.terms[0].value};
    const auto names = fusion_names();
    std::set<std::string> others(names.begin(), names.end());
    for (const std::string& rule : rules) others.erase(rule);
    const Graph joined = fuse(maker.graph, wanted, {others, 0});
    const Graph apart = fuse(maker.graph, wanted, {{names.begin(), names.end()}, 0});
    for (const std::string& rule : rules) {
      EXPECT_TRUE(joined.fused.contains(rule)) << rule << "\n" << text(joined);
    }
    EXPECT_TRUE(apart.fused.empty());
    compare_values(*autodiff(joined), *autodiff(apart), tolerance);
  }

  static void compare_values(const Graph& a, const Graph& b, double tolerance) {
    const auto found = run_graph(a, random_feeds(a));
    const auto expected = run_graph(b, random_feeds(b));
    ASSERT_TRUE(found.ok()) << found.error().message();
    ASSERT_TRUE(expected.ok()) << expected.error().message();
    expect_near(found->at(a.terms[0].value), expected->at(b.terms[0].value), tolerance, "loss");
    for (size_t p = 0; p < a.parameters.size(); ++p) {
      ASSERT_NE(a.parameters[p].gradient, 0) << a.parameters[p].name;
      expect_near(found->at(a.parameters[p].gradient), expected->at(b.parameters[p].gradient),
                  tolerance, a.parameters[p].name);
    }
  }

  static void expect_near(const Floats& found, const Floats& expected, double tolerance,
                          const std::string& what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    double largest = 0;
    for (float v : expected) largest = std::max(largest, std::abs(static_cast<double>(v)));
    EXPECT_GT(largest, 0) << what << " is all zeros: nothing is compared";
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], tolerance * largest) << what << " " << i;
    }
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};

 private:
  int count_ = 0;
};

}  // namespace ofsdp::testing

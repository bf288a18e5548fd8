// join_norm_addends: a normalization's gradient that adds the gradient of the residual, with the
// values from two nodes bit for bit; and the graphs where two nodes stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"
#include "kernels/core/memory.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/run_graph.h"

namespace ofsdp {
namespace norm_addends_test {

using testing::GraphMaker;
using testing::operators;

bool always(const Graph&, const Node&) { return true; }

int64_t count(const Graph& graph, const std::string& op) {
  return std::ranges::count(operators(graph), op);
}

class NormAddends : public ::testing::Test {
 protected:
  ValueId linear(const std::string& name, ValueId x, int64_t width) {
    const ValueId w = maker.parameter(name + ".weight", {width, width});
    return maker.node("Gemm", name, {x, w, maker.parameter(name + ".bias", {width})});
  }

  ValueId norm(const std::string& name, ValueId x, int64_t width, bool centred) {
    std::vector<ValueId> inputs{x, maker.parameter(name + ".scale", {width})};
    if (centred) inputs.push_back(maker.parameter(name + ".bias", {width}));
    return maker.node(centred ? "LayerNormalization" : "RMSNormalization", name, inputs);
  }

  Graph trained(ValueId prediction) {
    const ValueId target =
        maker.input("target", {DType::kFloat32, maker.graph.value(prediction).desc.shape});
    maker.graph.terms = {{maker.node("ofsdp.MseLoss", "loss", {prediction, target})}};
    return *autodiff(maker.graph);
  }

  // Two blocks x + f(norm(x)), and a norm last, as in GPT-2 and Llama.
  Graph pre_norm(bool centred) {
    const ValueId in = maker.input("x", {DType::kFloat32, {6, 40}});
    ValueId x = linear("in", in, 40);
    for (const char* block : {"a", "b"}) {
      const std::string name = block;
      const ValueId h = linear(name + ".fc", norm(name + ".norm", x, 40, centred), 40);
      x = maker.node("Add", name + ".sum", {x, h});
    }
    return trained(norm("last", x, 40, centred));
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};
};

TEST_F(NormAddends, EachResidualOfAPreNormModelIsOneNodeLessWithTheSameBits) {
  for (const bool centred : {true, false}) {
    maker = GraphMaker(registry);
    const Graph apart = pre_norm(centred), joined = join_norm_addends(apart, always);
    EXPECT_EQ(count(apart, "Add"), 4);
    EXPECT_EQ(count(joined, "Add"), 2) << "those of the forward pass";
    EXPECT_EQ(joined.fused.at("addend"), 2);
    const auto feeds = testing::random_feeds(apart);
    const auto expected = testing::run_graph(apart, feeds),
               found = testing::run_graph(joined, feeds);
    ASSERT_TRUE(expected.ok()) << expected.error().message();
    ASSERT_TRUE(found.ok()) << found.error().message();
    for (const Parameter& p : apart.parameters) {
      EXPECT_EQ(found->at(p.gradient), expected->at(p.gradient)) << p.name;
    }
  }
}

TEST_F(NormAddends, APostNormModelHasNone) {
  const ValueId x = linear("in", maker.input("x", {DType::kFloat32, {6, 40}}), 40);
  const ValueId sum = maker.node("Add", "sum", {x, linear("fc", x, 40)});
  const Graph apart = trained(norm("norm", sum, 40, true));
  EXPECT_EQ(text(join_norm_addends(apart, always)), text(apart));
}

TEST_F(NormAddends, AGradientThatComesLaterStaysApart) {
  const ValueId x = linear("in", maker.input("x", {DType::kFloat32, {6, 40}}), 40);
  const ValueId first = maker.node("Exp", "exp", {x});  // the gradient of Exp comes last
  const Graph apart = trained(maker.node("Mul", "mul", {first, norm("norm", x, 40, true)}));
  ASSERT_EQ(count(apart, "Add"), 1);
  EXPECT_EQ(text(join_norm_addends(apart, always)), text(apart));
}

// One node makes the gradient of the scale and the other gradient of x.
TEST_F(NormAddends, AnInputThatIsItsOwnScaleStaysApart) {
  const ValueId x = maker.parameter("x", {3, 4});
  const ValueId whole = maker.node("Identity", "same", {x});
  const Attributes axis{{"axis", int64_t{0}}};
  for (const char* op : {"LayerNormalization", "RMSNormalization"}) {
    GraphMaker made = maker;
    const Graph graph = [&] {
      const ValueId y = made.node(op, "norm", {whole, whole}, axis);
      const ValueId target = made.input("target", made.graph.value(y).desc);
      made.graph.terms = {{made.node("ofsdp.MseLoss", "loss", {y, target})}};
      return *autodiff(made.graph);
    }();
    ASSERT_EQ(count(graph, "Add"), 1);
    EXPECT_EQ(text(join_norm_addends(graph, always)), text(graph)) << op;
  }
}

TEST_F(NormAddends, AResultThatOthersReadStaysApart) {
  const Graph apart = pre_norm(true);
  for (const Node& node : apart.nodes) {
    if (node.op->full_name() != "ofsdp.LayerNormalizationGrad") continue;
    Graph read = apart;
    read.outputs.push_back(node.outputs[0]);
    const Graph joined = join_norm_addends(read, always);
    const bool last = node.name.starts_with("last");
    EXPECT_EQ(count(joined, "Add"), last ? 2 : 3) << node.name;
  }
}

TEST_F(NormAddends, StaysApartWhereNoKernelTakesIt) {
  const Graph apart = pre_norm(true);
  const auto never = [](const Graph&, const Node&) { return false; };
  EXPECT_EQ(text(join_norm_addends(apart, never)), text(apart));
}

using Bytes = std::vector<std::byte>;

// A node's first output.
Bytes run(const OpDef& op, const Problem& problem, const std::vector<Bytes>& given) {
  const auto kernel = create_kernel(op, problem);
  OFSDP_CHECK(kernel.ok(), "{}", kernel.error().message());
  std::vector<TensorView> inputs, outputs;
  for (size_t i = 0; i < given.size(); ++i) {
    auto* const data = const_cast<std::byte*>(given[i].data());
    inputs.push_back({problem.has_in(i) ? data : nullptr, problem.inputs[i]});
  }
  std::vector<Bytes> made;
  for (const TensorDesc& desc : problem.outputs) made.emplace_back(desc.bytes());
  for (size_t i = 0; i < made.size(); ++i) outputs.push_back({made[i].data(), problem.outputs[i]});
  Bytes workspace((*kernel)->workspace_bytes() + kTensorAlignment);
  void* aligned = workspace.data();
  size_t room = workspace.size();
  std::align(kTensorAlignment, (*kernel)->workspace_bytes(), aligned, room);
  const StepContext context;
  OFSDP_CHECK((*kernel)->run({inputs, outputs, static_cast<std::byte*>(aligned), &context}).ok(),
              "no result");
  return made[0];
}

Bytes random_bytes(const TensorDesc& desc, uint64_t seed) {
  if (!desc.present()) return {};
  std::vector<double> values(static_cast<size_t>(desc.numel()));
  for (double& v : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<double>(seed >> 40) / static_cast<double>(1 << 22) - 2;
  }
  Bytes made(desc.bytes());
  from_doubles(values, desc, made.data());
  return made;
}

// In 16 bits the node rounds dx before it adds, as two nodes do.
TEST_F(NormAddends, TheCpusKernelsHaveTheBitsOfTwoNodes) {
  const OpDef& gradient = registry.get("ofsdp.LayerNormalizationGrad");
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool sums : {false, true}) {
      const TensorDesc x{dtype, {37, 83}}, row{dtype, {83}}, statistic{DType::kFloat32, {37, 1}};
      Problem two{{{"axis", int64_t{-1}}}, {x, x, row, statistic, statistic, {}, {}}, {x}, {}};
      if (sums) two.outputs = {x, row, row};
      Problem one = two;
      one.inputs.push_back(x);
      two.constants.resize(7);
      one.constants.resize(8);
      std::vector<Bytes> operands;
      for (const TensorDesc& desc : one.inputs) {
        operands.push_back(random_bytes(desc, operands.size() + 1));
      }
      const Bytes joined = run(gradient, one, operands), addend = operands.back();
      operands.pop_back();
      const Bytes dx = run(gradient, two, operands);
      const Bytes sum =
          run(registry.get("Add"), {{}, {x, x}, {x}, {nullptr, nullptr}}, {dx, addend});
      EXPECT_NE(joined, dx);
      EXPECT_EQ(joined, sum) << dtype_name(dtype) << (sums ? " with sums" : "");
    }
  }
}

}  // namespace norm_addends_test
}  // namespace ofsdp

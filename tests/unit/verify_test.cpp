// verify: graphs made by passes are right, each kind of wrong graph is found and named with pass
// and node; GraphEditor asks operators before it changes a node; lists of a graph may move. And the
// order of passes, as the pipeline runs it and docs/internals/design.md lists it.
#include "importer/graph/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"
#include "importer/pipeline.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace verify_test {

using testing::GraphMaker;
using ::testing::HasSubstr;
using testing::mlp_training_graph;

// A mistake of a pass, and the facts in the line besides the pass.
struct Mistake {
  const char* name;
  void (*make)(Graph&);
  std::vector<std::string> facts;
  ErrorKind kind = ErrorKind::kFault;
};

Node& node_of(Graph& graph, const std::string& op) {
  const auto found = std::ranges::find_if(
      graph.nodes, [&](const Node& node) { return node.op->full_name() == op; });
  OFSDP_CHECK(found != graph.nodes.end(), "{}", op);
  return *found;
}

class Verify : public ::testing::Test {
 protected:
  Registry registry = make_registry();
  Graph graph = mlp_training_graph(registry, 6, {4, 8, 5});
};

class VerifyMistake : public Verify, public ::testing::WithParamInterface<Mistake> {};

TEST_F(Verify, TakesWhatPassesMake) {
  EXPECT_TRUE(verify(graph, "autodiff").ok());
  const auto always = [](const Graph&, const Node&) { return true; };
  EXPECT_TRUE(verify(join_loss_gradient(graph, always), "join_loss_gradient").ok());
  const auto planned = assign_layouts(graph);
  ASSERT_TRUE(planned.ok());
  EXPECT_TRUE(verify(*planned, "assign_layouts").ok());
}

TEST_P(VerifyMistake, IsFoundAndNamed) {
  const Mistake& mistake = GetParam();
  mistake.make(graph);
  const Status found = verify(graph, "planted");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.kind(), mistake.kind);
  EXPECT_THAT(found.message(), HasSubstr("after the pass 'planted': test.onnx: "));
  EXPECT_THAT(found.message(), ::testing::Not(HasSubstr("\n")));
  for (const std::string& fact : mistake.facts) EXPECT_THAT(found.message(), HasSubstr(fact));
}

std::vector<Mistake> mistakes() {
  return {
      {"operator_of_another_shape",
       [](Graph& g) { node_of(g, "Relu").op = &g.registry->get("Transpose"); },
       {"node 'relu0' (Transpose)", "output 0", "float32[8, 6]", "float32[6, 8]"}},
      {"no_operator", [](Graph& g) { node_of(g, "Relu").op = nullptr; }, {"node 'relu0'"}},
      {"attribute",
       [](Graph& g) { node_of(g, "Gemm").attributes.set("transB", int64_t{0}); },
       {"node 'fc0' (Gemm)"}},
      {"swapped_operands",
       [](Graph& g) { std::swap(node_of(g, "Gemm").inputs[0], node_of(g, "Gemm").inputs[1]); },
       {"node 'fc0' (Gemm)"}},
      {"too_few_inputs",
       [](Graph& g) { node_of(g, "Gemm").inputs.resize(1); },
       {"node 'fc0' (Gemm)", "at least 2 inputs", "found 1"}},
      {"too_many_outputs",
       [](Graph& g) {
         node_of(g, "Relu").outputs.push_back(
             GraphEditor(g).add_value({"more", ValueKind::kActivation, {}}));
       },
       {"node 'relu0' (Relu)", "has 2 outputs"}},
      {"read_before_it_is_made",
       [](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); },
       {"node 'relu0' (Relu)", "reads 'fc0'", "no node before makes"}},
      {"a_value_that_is_none",
       [](Graph& g) { node_of(g, "Relu").inputs[0] = 10000; },
       {"node 'relu0' (Relu)", "10000"}},
      {"made_twice",
       [](Graph& g) {
         const Node again = g.nodes[0];
         g.nodes.insert(g.nodes.begin(), &again, &again + 1);
       },
       {"node 'fc0' (Gemm)", "makes 'fc0'", "is there already"}},
      {"a_parameter_made",
       [](Graph& g) { node_of(g, "Relu").outputs[0] = g.parameters[0].value; },
       {"node 'relu0' (Relu)", "makes 'w0'"}},
      {"forward_after_backward",
       [](Graph& g) { g.nodes.back().backward = false; },
       {"a forward node after a backward one"}},
      {"type_of_a_value",
       [](Graph& g) { g.value(node_of(g, "Relu").outputs[0]).desc.dtype = DType::kFloat16; },
       {"node 'relu0' (Relu)", "float16[6, 8]"}},
      {"shape_of_a_gradient",
       [](Graph& g) { std::swap(g.parameters[0].gradient, g.parameters[1].gradient); },
       {"the gradient of parameter 'w0'", "float32[8, 4]", "float32[8]"}},
      {"gradient_that_is_none",
       [](Graph& g) {
         g.parameters[0].gradient =
             GraphEditor(g).add_value({"none", ValueKind::kActivation, g.value(1).desc});
       },
       {"parameter 'w0'", "no node makes its gradient"}},
      {"loss_that_is_none",
       [](Graph& g) {
         g.terms[0].value = GraphEditor(g).add_value({"nowhere", ValueKind::kActivation, {}});
       },
       {"no node makes 'nowhere'"}},
      {"constant_without_a_value",
       [](Graph& g) {
         for (Value& value : g.values) value.constant = nullptr;
         Value& value = g.value(node_of(g, "Relu").inputs[0]);
         value.kind = ValueKind::kConstant;
         g.nodes.erase(g.nodes.begin());
       },
       {"node 'relu0' (Relu)", "'fc0'", "which is unknown"}},
      {"axes_of_the_file",
       [](Graph& g) {
         g.value(g.inputs[0]).desc.shape = {7, 4};
       },
       {"input 'x'", "float32[7, 4]"},
       ErrorKind::kInput},
  };
}

INSTANTIATE_TEST_SUITE_P(All, VerifyMistake, ::testing::ValuesIn(mistakes()),
                         [](const auto& info) { return info.param.name; });

// Restores the variable in the destructor.
class Asked {
 public:
  explicit Asked(const char* value) {
    if (const char* const old = std::getenv(kName)) old_ = old;
    setenv(kName, value, 1);
  }
  ~Asked() { setenv(kName, old_.c_str(), 1); }

 private:
  static constexpr const char* kName = "OFSDP_VERIFY_PASSES";
  std::string old_ = "0";
};

TEST_F(Verify, APassEndsWithItWhereTheEnvironmentSays) {
  EXPECT_TRUE(verifies_each_pass()) << "CTest and test_main set OFSDP_VERIFY_PASSES";
  node_of(graph, "Gemm").attributes.set("transB", int64_t{0});
  {
    const Asked asked("1");
    const auto found = checked("planted", graph);
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.error().message(), HasSubstr("after the pass 'planted'"));
    EXPECT_FALSE(checked("planted", ok_status(), graph).ok());
    EXPECT_EQ(checked("planted", input_error("its own"), graph).message(), "its own");
    EXPECT_EQ(checked("planted", Result<Graph>(input_error("its own"))).error().message(),
              "its own");
  }
  const Asked asked("0");
  if (verifies_each_pass()) GTEST_SKIP() << "a build with a sanitizer";
  EXPECT_TRUE(checked("planted", graph).ok());
  EXPECT_TRUE(checked("planted", ok_status(), graph).ok());
}

// --- GraphEditor ---

class EditorChanges : public ::testing::Test {
 protected:
  EditorChanges() {
    const ValueId x = maker.input("x", {DType::kFloat32, {3, 4}});
    y = maker.node("Relu", "act", {x});
  }
  Node with_operator(const std::string& op) const {
    Node made = maker.graph.nodes[0];
    made.op = &registry.get(op);
    return made;
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};
  ValueId y = 0;
};

TEST_F(EditorChanges, KeepTypesAndShapes) {
  GraphEditor editor(maker.graph);
  Node& node = maker.graph.nodes[0];
  EXPECT_TRUE(editor.change(node, with_operator("Neg")).ok());
  EXPECT_EQ(node.op->name, "Neg");
  const std::string before = text(maker.graph);
  const Status refused = editor.change(node, with_operator("Transpose"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.message(),
            "test.onnx: node 'act' (Transpose): output 0 ('act'): expected float32[4, 3], as the "
            "operator gives, found float32[3, 4]");
  EXPECT_EQ(text(maker.graph), before);
}

TEST_F(EditorChanges, MayGiveNewOnes) {
  GraphEditor editor(maker.graph);
  EXPECT_TRUE(editor.change_descs(maker.graph.nodes[0], with_operator("Transpose")).ok());
  EXPECT_EQ(maker.graph.value(y).desc.text(), "float32[4, 3]");
}

TEST_F(EditorChanges, PlacedNodesFitTheirOutputs) {
  GraphEditor editor(maker.graph);
  const ValueId z = editor.add_value({"z", ValueKind::kActivation, {DType::kFloat32, {3, 4}}});
  const Node turned{&registry.get("Transpose"), "turned", {}, {y}, {z}};
  EXPECT_FALSE(editor.place(turned).ok());
  EXPECT_EQ(maker.graph.nodes.size(), 1u);
  EXPECT_TRUE(editor.place({&registry.get("Neg"), "minus", {}, {y}, {z}}).ok());
  EXPECT_EQ(maker.graph.nodes.size(), 2u);
  const ValueId w = editor.add_value({"w", ValueKind::kActivation, {}});
  EXPECT_TRUE(editor.place_inferred({&registry.get("Transpose"), "turned", {}, {y}, {w}}).ok());
  EXPECT_EQ(maker.graph.value(w).desc.text(), "float32[4, 3]");
}

// --- lists that move ---

// With AddressSanitizer a graph has these: a reference from before never survives a growth.
TEST(MovingVector, IsElsewhereAfterEachGrowth) {
  importer::MovingVector<std::string> list{"first"};
  for (int i = 0; i < 100; ++i) {
    const std::string* const before = list.data();
    switch (i % 4) {
      case 0:
        list.push_back(list[0]);
        break;
      case 1:
        list.emplace_back(3, 'x');
        break;
      case 2:
        list.resize(list.size() + 1);
        break;
      default:
        list.insert(list.begin(), list.begin(), list.begin() + 1);
    }
    EXPECT_NE(list.data(), before) << i;
    EXPECT_EQ(list.size(), static_cast<size_t>(i + 2));
    EXPECT_EQ(list[0], "first");
  }
}

TEST(MovingVector, OfAGraphInBuildsWithAddressSanitizer) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool kMoves = true;
#else
  constexpr bool kMoves = false;
#endif
  Graph graph;
  graph.values.reserve(64);
  const Value* const before = graph.values.data();
  GraphEditor(graph).add_value({"x", ValueKind::kActivation, {}});
  EXPECT_EQ(graph.values.data() != before, kMoves);
}

#if defined(__SANITIZE_ADDRESS__)
// A rule or pass that asks, adds and then reads the old answer, as several did.
TEST(MovingVector, ShowsAReferenceThatIsHeldTooLong) {
  const auto too_long = [] {
    Graph graph;
    GraphEditor editor(graph);
    const ValueId x = editor.add_value({"x", ValueKind::kActivation, {DType::kFloat32, {3, 4}}});
    graph.values.reserve(64);
    const TensorDesc& held = graph.value(x).desc;
    editor.add_value({"y", ValueKind::kActivation, {}});
    return held.shape.rank();
  };
  EXPECT_DEATH(too_long(), "heap-use-after-free");
}
#endif

// --- builders hand out values ---

static_assert(!std::is_reference_v<decltype(std::declval<GradBuilder&>().desc(Ref{}))>);
static_assert(!std::is_reference_v<decltype(std::declval<GradBuilder&>().attributes())>);
static_assert(!std::is_reference_v<decltype(TensorDesc{}.shape.axes())>);
static_assert(!std::is_reference_v<decltype(Attributes{}.all())>);

TEST(SharedAttributes, AreCopiedWhereOneIsSet) {
  const Attributes first{{"axis", int64_t{1}}};
  Attributes second = first, empty, third = empty;
  second.set("axis", int64_t{2});
  third.set("more", int64_t{3});
  EXPECT_EQ(first.i("axis", 0), 1);
  EXPECT_EQ(second.i("axis", 0), 2);
  EXPECT_TRUE(empty.all().empty());
  EXPECT_EQ(third.i("more", 0), 3);
}

TEST(Pipeline, StandsInTheDocuments) {
  std::vector<std::string> expected, found;
  for (const Pass& pass : pipeline()) {
    expected.push_back(
        format_text("| `{}` | {} | {} |", pass.name, name_of(pass.stage), pass.when));
  }
  std::ifstream page(OFSDP_SOURCE_DIR "/docs/internals/design.md");
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "| pass | stage | runs |") {
      inside = true;
      std::getline(page, line);  // the rule between head and rows
      continue;
    }
    inside = inside && line.starts_with("|");
    if (inside) found.push_back(line);
  }
  EXPECT_THAT(found, ::testing::ElementsAreArray(expected));
}

TEST(Pipeline, HasItsStagesInOrderAndNamesOnce) {
  std::set<std::string> names;
  PassStage last = PassStage::kImport;
  for (const Pass& pass : pipeline()) {
    EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
    EXPECT_GE(pass.stage, last) << pass.name;
    last = pass.stage;
  }
}

// Returns the names of a stage's passes that would run over the graph.
std::vector<std::string> running(const Graph& graph, const PassContext& context, PassStage stage) {
  std::vector<std::string> names;
  for (const Pass& pass : pipeline()) {
    if (pass.stage == stage && pass.runs(graph, context)) names.emplace_back(pass.name);
  }
  return names;
}

TEST(Pipeline, ConditionsDecide) {
  Graph graph;
  GraphSettings settings;
  PassContext context;
  context.settings = &settings;
  using Names = std::vector<std::string>;
  EXPECT_EQ(running(graph, context, PassStage::kFuse), Names{"fuse"});
  EXPECT_EQ(running(graph, context, PassStage::kBackward), Names{"autodiff"});
  EXPECT_EQ(
      running(graph, context, PassStage::kProgram),
      (Names{"join_loss_gradient", "multiply_kept_rows", "chunk_losses", "join_norm_addends"}));
  settings.param_dtype = DType::kBFloat16;
  settings.sync_batch_norm = true;
  EXPECT_EQ(running(graph, context, PassStage::kFuse), (Names{"fuse", "lower_precision"}));
  EXPECT_EQ(running(graph, context, PassStage::kFinish),
            (Names{"synchronize_batch_norm", "assign_layouts"}));
  graph.terms = {{.weight = 1}};  // the file brings a backward part
  EXPECT_EQ(running(graph, context, PassStage::kFuse), Names{});
  EXPECT_EQ(running(graph, context, PassStage::kBackward), Names{"order_backward"});
  context.forward_only = true;
  EXPECT_EQ(running(graph, context, PassStage::kFuse), (Names{"fuse", "lower_precision"}));
  context.forward_only = false;
  context.mode = Mode::kEval;
  context.device = true;
  EXPECT_EQ(running(graph, context, PassStage::kFuse), (Names{"fuse", "lower_precision"}));
  EXPECT_EQ(running(graph, context, PassStage::kBackward), Names{});
  EXPECT_EQ(running(graph, context, PassStage::kFinish), Names{"assign_layouts"});
  EXPECT_EQ(running(graph, context, PassStage::kProgram),
            (Names{"repeat_chains", "keep_attention_statistics", "join_epilogues", "pitch_rows"}));
}

TEST(Pipeline, RunsStagesAsFunctionsInARowDo) {
  const Registry registry = make_registry();
  GraphMaker maker(registry);
  const ValueId x = maker.input("x", {DType::kFloat32, {4, 3}});
  const ValueId w = maker.parameter("w", {3, 2});
  const ValueId y = maker.node("MatMul", "y", {x, w});
  maker.graph.outputs = {y};
  GraphSettings settings;
  settings.rows = {{"x", Shape{3}}, {"labels", Shape{}}};
  LossSpec& loss = settings.losses.emplace_back();
  loss.kind = LossKind::kCrossEntropy;
  loss.prediction = "y";
  loss.labels = "labels";
  PassContext context;
  context.symbolic = &maker.graph;
  context.settings = &settings;
  context.batch = 4;
  Graph made;
  const Status ran =
      run_passes(made, context, {PassStage::kBackward, PassStage::kLoss, PassStage::kSpecialize});
  ASSERT_TRUE(ran.ok()) << ran.message();
  const Graph shaped =
      *specialize(maker.graph, *bind_inputs(maker.graph, settings.rows, 4), Mode::kTrain);
  const Graph lossy = *attach_losses(shaped, settings.losses, {{"labels", Shape{4}}}, false);
  EXPECT_EQ(text(made), text(*autodiff(lossy)));
}

}  // namespace verify_test
}  // namespace ofsdp

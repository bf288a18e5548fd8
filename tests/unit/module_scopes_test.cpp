// Modules of initializers from each mark that exporters leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/normalize/onnx_import.h"
#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace module_scopes_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using testing::ElementsAre;
using testing::Pair;
using testing_data::TempFolder;

// A MatMul with `weight` in a chain, with metadata.
struct Step {
  std::string name;
  std::string weight;
  std::vector<std::pair<std::string, std::string>> metadata{};
};

constexpr const char* kScopes = "pkg.torch.onnx.name_scopes";
constexpr const char* kClasses = "pkg.torch.onnx.class_hierarchy";

struct Modules {
  std::map<std::string, std::string> of;  // initializer -> module
  std::map<std::string, std::string> classes;
};

Modules modules(const std::vector<Step>& steps) {
  SmallModel model;
  std::map<std::string, int> weights;
  std::string value = "x";
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string next = i + 1 == steps.size() ? "y" : "v" + std::to_string(i);
    std::string bytes = node("MatMul", {value, steps[i].weight}, {next}, steps[i].name);
    for (const auto& [key, text] : steps[i].metadata) {
      bytes += message(9, message(1, key) + message(2, text));
    }
    model.nodes.push_back(bytes);
    if (weights[steps[i].weight]++ == 0) {
      const std::vector<float> values(25, 0.5f);
      model.initializers.push_back(tensor(steps[i].weight, kFloat, {5, 5}, raw(values)));
    }
    value = next;
  }
  model.inputs = {declared("x", {-1, 5})};
  model.outputs = {declared("y", {-1, 5})};
  const TempFolder folder;
  folder.write("m.onnx", model.bytes());
  const auto file = OnnxFile::open(folder.path() + "/m.onnx");
  EXPECT_TRUE(file.ok()) << file.error().message();
  const Registry registry = make_registry();
  const auto graph = import_onnx(*file, registry);
  EXPECT_TRUE(graph.ok()) << graph.error().message();
  Modules result{{}, graph->classes};
  for (const Parameter& p : graph->parameters) result.of[p.name] = p.module;
  return result;
}

TEST(ModuleScopes, NamesOfInitializers) {
  EXPECT_THAT(modules({{"a", "h.0.fc.weight"}, {"b", "w"}, {"c", "model/dense/kernel:0"}}).of,
              ElementsAre(Pair("h.0.fc.weight", "h.0.fc"),
                          Pair("model/dense/kernel:0", "model.dense"), Pair("w", "")));
}

// The TorchScript exporter gives new names to folded weights.
TEST(ModuleScopes, NamesOfNodes) {
  EXPECT_THAT(modules({{"/bert/encoder/layer.0/query/MatMul", "onnx::MatMul_17"},
                       {"StatefulPartitionedCall/model/layer_._1/MatMul", "const_fold_opt__3"}})
                  .of,
              ElementsAre(Pair("const_fold_opt__3", "StatefulPartitionedCall.model.layer_._1"),
                          Pair("onnx::MatMul_17", "bert.encoder.layer.0.query")));
}

TEST(ModuleScopes, MetadataOfTorchWithClasses) {
  const Modules found =
      modules({{"node_MatMul_1",
                "val_3",
                {{kClasses, "['demo.Model', 'demo.Block', 'aten.linear.default']"},
                 {kScopes, "['', 'h.0', 'linear']"}}}});
  EXPECT_THAT(found.of, ElementsAre(Pair("val_3", "h.0")));
  EXPECT_THAT(found.classes, ElementsAre(Pair("", "demo.Model"), Pair("h.0", "demo.Block")));
}

TEST(ModuleScopes, MetadataThatIsOnlyANamespace) {
  const Modules found = modules(
      {{"n", "val_3", {{"namespace", ": demo.Model/h.0: demo.Block/linear: aten.linear"}}}});
  EXPECT_THAT(found.of, ElementsAre(Pair("val_3", "h.0")));
  EXPECT_THAT(found.classes, ElementsAre(Pair("", "demo.Model"), Pair("h.0", "demo.Block")));
}

TEST(ModuleScopes, MetadataThatCannotBeReadIsLeftOut) {
  for (const char* text : {"", "[", "['", "['']", "[]", "no list"}) {
    EXPECT_THAT(modules({{"n", "h.0.weight", {{kScopes, text}, {kClasses, text}}}}).of,
                ElementsAre(Pair("h.0.weight", "h.0")))
        << text;
  }
  EXPECT_THAT(modules({{"n", "h.0.weight", {{"namespace", "without colons"}}}}).of,
              ElementsAre(Pair("h.0.weight", "h.0")));
}

TEST(ModuleScopes, ATiedWeightBelongsToWhatHoldsAllItsUses) {
  EXPECT_THAT(
      modules({{"/enc/layer.0/a/MatMul", "enc.layer.0.a.w"},
               {"/enc/layer.1/a/MatMul", "enc.layer.0.a.w"},
               {"/enc/layer.1/b/MatMul", "enc.layer.1.b.w"},
               {"/enc/layer.1/b/MatMul_1", "enc.layer.1.b.w"}})
          .of,
      ElementsAre(Pair("enc.layer.0.a.w", "enc.layer"), Pair("enc.layer.1.b.w", "enc.layer.1.b")));
}

// A parent's code may use a module; for a node without a scope the name decides.
TEST(ModuleScopes, TheNameMayBeDeeperThanTheNodes) {
  EXPECT_THAT(modules({{"/enc/MatMul", "enc.fc.weight"},
                       {"/enc/MatMul_1", "other.weight"},
                       {"MatMul_2", "dec.fc.weight"},
                       {"/enc/MatMul_3", "dec.fc.weight"}})
                  .of,
              ElementsAre(Pair("dec.fc.weight", "dec.fc"), Pair("enc.fc.weight", "enc.fc"),
                          Pair("other.weight", "enc")));
}

}  // namespace module_scopes_test
}  // namespace ofsdp

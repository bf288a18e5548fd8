// Functions that a model brings along: the attributes that their bodies get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/defs/parser.h>

#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "kernels/ops/operators.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace local_functions_test {

using namespace onnx_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// `call`: the node that makes y from x.
std::string model_with(const std::string& call, const std::string& functions) {
  return R"(<ir_version: 10, opset_import: ["" : 17, "d" : 1]>
g (float[2, 3] x) => (float[2, 3] y) { y = )" +
         call + " }\n" + functions;
}

// The slope has the default 0.5; its name in the body is another.
const std::string kAct = R"(<domain: "d", opset_import: ["" : 17]>
Act <slope: float = 0.5> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }
)";
// Hands its attribute on, which has no default.
const std::string kOuter = R"(<domain: "d", opset_import: ["" : 17, "d" : 1]>
Outer <steep> (a) => (b) { b = d.Act <slope: float = @steep> (a) }
)";

class LocalFunctions : public ::testing::Test {
 protected:
  Result<Graph> imported(const std::string& text) {
    onnx::ModelProto model;
    const auto parsed = onnx::OnnxParser::Parse(model, text.c_str());
    EXPECT_TRUE(parsed.IsOK()) << parsed.ErrorMessage();
    auto file = OnnxFile::open(folder.write("model.onnx", model.SerializeAsString()));
    if (!file.ok()) return std::move(file).status();
    return import_onnx(*file, registry);
  }
  // Returns the slopes of the graph's LeakyRelu nodes.
  std::vector<float> slopes(const std::string& text) {
    const auto graph = imported(text);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    std::vector<float> found;
    if (!graph.ok()) return found;
    for (const Node& node : graph->nodes) {
      if (node.op->name == "LeakyRelu") found.push_back(node.attributes.f("alpha", 0.01f));
    }
    return found;
  }

  Folder folder;
  Registry registry = make_registry();
};

TEST_F(LocalFunctions, ACallWithoutAnAttributeTakesTheDefault) {
  EXPECT_THAT(slopes(model_with("d.Act(x)", kAct)), ElementsAre(0.5f));
  EXPECT_THAT(slopes(model_with("d.Act <slope = 0.25> (x)", kAct)), ElementsAre(0.25f));
}

TEST_F(LocalFunctions, AnAttributeThatIsHandedOnTakesTheDefaultOfTheInnerFunction) {
  EXPECT_THAT(slopes(model_with("d.Outer(x)", kAct + kOuter)), ElementsAre(0.5f));
  EXPECT_THAT(slopes(model_with("d.Outer <steep = 0.125> (x)", kOuter + kAct)),
              ElementsAre(0.125f));
}

TEST_F(LocalFunctions, ReadersWithDifferentDefaultsAreRefused) {
  const std::string both = R"(<domain: "d", opset_import: ["" : 17, "d" : 1]>
Both <steep> (a) => (c) {
  b = d.Act <slope: float = @steep> (a)
  c = LeakyRelu <alpha: float = @steep> (b)
}
)";
  EXPECT_THAT(slopes(model_with("d.Both <steep = 0.5> (x)", kAct + both)), ElementsAre(0.5f, 0.5f));
  const auto graph = imported(model_with("d.Both(x)", kAct + both));
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message(), HasSubstr("function 'Both': attribute 'steep'"));
}

TEST_F(LocalFunctions, ADomainOfFunctionsMayHaveOtherVersionsInside) {
  std::string text = model_with("d.Outer(x)", kAct + kOuter);
  const std::string version = R"(["" : 17, "d" : 1]>
Outer)";
  text.replace(text.find(version), version.size(), R"(["" : 17, "d" : 23]>
Outer)");
  EXPECT_THAT(slopes(text), ElementsAre(0.5f));
}

TEST_F(LocalFunctions, CallsInBranchesTakeTheDefaultToo) {
  const std::string branch = R"(<ir_version: 10, opset_import: ["" : 17, "d" : 1]>
g (float[2, 3] x) => (float[2, 3] y)
<bool c = {1}> {
  y = If (c) <
    then_branch = t () => (float[2, 3] p) { p = d.Act(x) },
    else_branch = e () => (float[2, 3] q) { q = Identity(x) }>
}
)";
  EXPECT_THAT(slopes(branch + kAct), ElementsAre(0.5f));
}

}  // namespace local_functions_test
}  // namespace ofsdp

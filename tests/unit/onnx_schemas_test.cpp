// ONNX's registry makes a schema on request (scripts/lazy_onnx.py).
#include <gtest/gtest.h>
#include <onnx/defs/schema.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/namespaces.h"

namespace ofsdp {
namespace onnx_schemas_test {

using onnx::OpSchema;
using onnx::OpSchemaMaker;
using onnx::OpSchemaRegistry;
using Versions = std::map<int, OpSchemaMaker>;

std::map<std::pair<std::string, std::string>, Versions> by_operator() {
  std::map<std::pair<std::string, std::string>, Versions> found;
  OpSchemaRegistry::ForEachMaker(
      [&](const char* name, const char* domain, int version, OpSchemaMaker make) {
        Versions& versions = found[std::pair<std::string, std::string>{name, domain}];
        EXPECT_TRUE(versions.emplace(version, make).second) << name << version;
      });
  return found;
}

// From the newest to the oldest: an older schema is made although newer ones exist.
TEST(OnnxSchemas, AreThoseOfTheVersionThatIsAskedFor) {
  int schemas = 0;
  for (const auto& [op, versions] : by_operator()) {
    const auto& [name, domain] = op;
    for (int asked = 30; asked > 0; --asked) {
      const OpSchema* const schema = OpSchemaRegistry::Schema(name, asked, domain);
      const auto above = versions.upper_bound(asked);
      ASSERT_EQ(schema == nullptr, above == versions.begin()) << name << asked;
      if (schema == nullptr) continue;
      EXPECT_EQ(schema->Name(), name);
      EXPECT_EQ(schema->domain(), domain);
      EXPECT_EQ(schema->SinceVersion(), std::prev(above)->first);
    }
    EXPECT_EQ(OpSchemaRegistry::Schema(name, domain)->SinceVersion(), versions.rbegin()->first);
    schemas += static_cast<int>(versions.size());
  }
  EXPECT_GE(schemas, 659);  // ONNX 1.23
  EXPECT_EQ(OpSchemaRegistry::Schema("Relu", 22, "ai.onnx.ml"), nullptr);
  EXPECT_EQ(OpSchemaRegistry::Schema("NoSuchOperator", 22, ""), nullptr);
}

TEST(OnnxSchemas, AreMadeOnceHoweverManyThreadsAsk) {
  const std::vector<std::string> names = {"Relu", "Gemm", "Softmax", "LayerNormalization"};
  std::vector<std::vector<const OpSchema*>> found(4);
  std::vector<std::thread> threads;
  for (std::vector<const OpSchema*>& mine : found) {
    threads.emplace_back([&] {
      for (const std::string& name : names) mine.push_back(OpSchemaRegistry::Schema(name, 21, ""));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : found) EXPECT_EQ(mine, found[0]);
}

}  // namespace onnx_schemas_test
}  // namespace ofsdp

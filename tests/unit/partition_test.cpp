// Units from marks that exporters leave in a file and from repetition; golden tables of groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/plan/plan.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/fusion/fusion.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace partition_test {

using testing::GraphMaker;
using ::testing::HasSubstr;

// "name: parameters" a line, '=' instead of ':' for replicated units.
std::string table(const Graph& graph, const PlanOptions& options = {}) {
  const auto parts = partition(graph, options);
  EXPECT_TRUE(parts.ok()) << parts.error().message();
  std::string out = parts->notice.empty() ? "" : parts->notice + "\n";
  for (const ParameterGroup& group : parts->groups) {
    std::vector<std::string> names;
    for (const int p : group.parameters) {
      names.push_back(graph.parameters[static_cast<size_t>(p)].name);
    }
    const bool replicated = group.kind == ParameterGroup::Kind::kReplicated;
    out += format_text("{}{} {}\n", group.name, replicated ? " =" : ":", joined(names, " "));
  }
  return out;
}

std::string refusal(const Graph& graph, const PlanOptions& options) {
  auto parts = partition(graph, options);
  EXPECT_FALSE(parts.ok());
  return parts.ok() ? "" : parts.error().message();
}

PlanOptions layers(std::vector<std::string> names) {
  PlanOptions options;
  options.wrap_layers = std::move(names);
  return options;
}

PlanOptions ignoring(WrapPolicy wrap, std::vector<std::string> names) {
  PlanOptions options{.wrap = wrap, .min_params = 1};
  options.ignore = std::move(names);
  return options;
}

// The decoder in tests/oracle: three blocks, the head tied to the embedding.
class DecoderUnits : public ::testing::TestWithParam<std::string> {
 protected:
  Graph decoder(const TrainedRules& rules = {}, bool fused = false) const {
    const auto file =
        OnnxFile::open(OFSDP_SOURCE_DIR "/tests/oracle/cases/decoder/" + GetParam() + ".onnx");
    const Graph imported = *import_onnx(*file, registry);
    const Graph chosen = *choose_candidates(imported, rules);
    const Graph graph = *specialize(chosen, *bind_inputs(chosen, {{"x", {8}}}, 4), Mode::kTrain);
    return fused ? fuse(graph, graph.outputs) : graph;
  }

  static std::string block(int i) {
    std::string text = "h.#: h.#.ln_1.weight h.#.ln_1.bias h.#.qkv.weight h.#.qkv.bias";
    text += " h.#.proj.weight h.#.proj.bias h.#.ln_2.weight h.#.ln_2.bias";
    text += " h.#.mlp.0.weight h.#.mlp.0.bias h.#.mlp.2.weight h.#.mlp.2.bias\n";
    for (size_t at = 0; (at = text.find('#')) != std::string::npos;) {
      text.replace(at, 1, std::to_string(i));
    }
    return text;
  }

  static std::string blocks(const char* root) { return block(0) + block(1) + block(2) + root; }

  Registry registry = make_registry();
};

INSTANTIATE_TEST_SUITE_P(Exporters, DecoderUnits, ::testing::Values("dynamo", "legacy"),
                         [](const auto& info) { return info.param; });

TEST_P(DecoderUnits, BlocksByNameAndTheTiedHeadInTheRoot) {
  const std::string tied = GetParam() == "legacy" ? "e.weight" : "head.weight";
  EXPECT_EQ(table(decoder()), blocks(("root: " + tied + " n.weight n.bias\n").c_str()));
}

TEST_P(DecoderUnits, BlocksByRepetitionWhereNamesSayNothing) {
  for (const bool fused : {false, true}) {
    Graph graph = decoder({}, fused);
    const Partition named = *partition(graph, {});
    for (Parameter& p : graph.parameters) p.module.clear();
    graph.classes.clear();
    const Partition found = *partition(graph, {});
    ASSERT_EQ(found.groups.size(), 4u) << fused;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(found.groups[i].parameters, named.groups[i].parameters) << fused << " " << i;
      EXPECT_EQ(found.groups[i].name, i == 3 ? "root" : format_text("block.{}", i));
    }
  }
}

TEST_P(DecoderUnits, NamesOfBiasesAloneDoNotMakeBlocks) {
  Graph graph = decoder();
  for (Parameter& p : graph.parameters) {
    if (p.name.ends_with(".weight")) p.module.clear();
  }
  EXPECT_EQ(table(graph), table(decoder()));
}

TEST_P(DecoderUnits, FrozenAndTrainedOnesMix) {
  const Graph graph = decoder({{"h.0.*", "h.1.mlp*"}, {}});
  const Partition parts = *partition(graph, {});
  ASSERT_EQ(parts.groups.size(), 3u);
  EXPECT_EQ(parts.groups[0].name, "h.1");
  EXPECT_EQ(parts.groups[0].parameters.size(), 8u);
  EXPECT_EQ(parts.groups[1].name, "h.2");
  EXPECT_EQ(parts.groups[1].parameters.size(), 12u);
}

TEST_P(DecoderUnits, LayersThatAreAskedFor) {
  const Graph graph = decoder();
  const std::string all = table(graph);
  EXPECT_EQ(table(graph, layers({"h.*"})), all);
  EXPECT_EQ(table(graph, layers({"/h.[0-2]"})), all);
  EXPECT_THAT(table(graph, layers({"h.1", "n"})), HasSubstr("\nn: n.weight n.bias\nroot: "));
  if (GetParam() == "legacy") {
    EXPECT_THAT(refusal(graph, layers({"Block"})), HasSubstr("the file names no classes"));
    return;
  }
  EXPECT_EQ(table(graph, layers({"Block"})), all);
  EXPECT_EQ(table(graph, layers({"__main__.Block"})), all);
  EXPECT_EQ(table(graph, layers({"Bl?ck"})), all);
  EXPECT_THAT(refusal(graph, layers({"Blok"})),
              AllOf(HasSubstr("--wrap-layers Blok"), HasSubstr("did you mean 'Block'?")));
}

TEST_P(DecoderUnits, InnerLayersTakeTheirParametersFromOuterOnes) {
  const std::string text = table(decoder(), layers({"h.*", "h.1.mlp"}));
  EXPECT_THAT(text, HasSubstr("\nh.1.mlp: h.1.mlp.0.weight h.1.mlp.0.bias h.1.mlp.2.weight "
                              "h.1.mlp.2.bias\n"));
  EXPECT_THAT(text, HasSubstr("h.1.ln_2.bias\nh.1.mlp"));
}

TEST_P(DecoderUnits, IgnoredOnesAreAGroupUnderEveryPolicy) {
  for (const WrapPolicy wrap : {WrapPolicy::kTransformer, WrapPolicy::kSize, WrapPolicy::kNone}) {
    const std::string text = table(decoder(), ignoring(wrap, {"h.?.ln_1.bias", "n.weight"}));
    EXPECT_THAT(text, HasSubstr("ignored = h.0.ln_1.bias h.1.ln_1.bias h.2.ln_1.bias n.weight\n"));
    EXPECT_EQ(text.find(" n.weight"), text.rfind(" n.weight"));
    const bool alone = text.find("\nh.0.qkv.weight: h.0.qkv.weight\n") != std::string::npos;
    EXPECT_EQ(alone, wrap == WrapPolicy::kSize) << text;
  }
}

class Units : public ::testing::Test {
 protected:
  // x[2, 8] -> MatMul with a weight under that name.
  ValueId matmul(ValueId x, const std::string& name, const std::string& module) {
    const ValueId w = maker.parameter(name, {8, 8});
    maker.graph.parameters.back().module = module;
    return maker.node("MatMul", name + ".matmul", {x, w});
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};
  ValueId x = maker.input("x", {DType::kFloat32, {2, 8}});
};

TEST_F(Units, AWeightThatTwoBlocksReadBelongsToTheRoot) {
  for (const std::string block : {"h.0", "h.1"}) {
    x = matmul(x, block + ".a.w", block + ".a");
    const ValueId shared = maker.graph.find("h.0.s.w");
    x = shared != 0 ? maker.node("MatMul", "again", {x, shared}) : matmul(x, "h.0.s.w", "h.0.s");
    x = matmul(x, block + ".b.w", block + ".b");
  }
  EXPECT_EQ(table(maker.graph, layers({"h.*"})),
            "h.0: h.0.a.w h.0.b.w\nh.1: h.1.a.w h.1.b.w\nroot: h.0.s.w\n");
}

TEST_F(Units, OneNumberedListInsideOfAnotherIsNoBlockOfItsOwn) {
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const std::string name = format_text("layers.{}.sub.{}.", i, j);
      x = matmul(x, name + "a.w", name + "a");
      x = matmul(x, name + "b.w", name + "b");
    }
  }
  EXPECT_THAT(table(maker.graph), HasSubstr("layers.0: layers.0.sub.0.a.w"));
}

// Parameters read before all blocks and after all form a unit each, unless one weight is both.
TEST_F(Units, TheRootHasTwoEndsUnlessTheyAreTied) {
  x = matmul(x, "embed.w", "embed");
  x = maker.node("MatMul", "first", {x, maker.parameter("first.w", {8, 8})});
  const ValueId between = maker.parameter("between.w", {8, 8});
  for (const std::string block : {"h.0", "h.1"}) {
    x = matmul(x, block + ".a.w", block + ".a");
    x = maker.node("MatMul", block + ".between", {x, between});
    x = matmul(x, block + ".b.w", block + ".b");
  }
  x = matmul(x, "head.w", "head");
  PlanOptions options = layers({"h.*"});
  const std::string blocks = "h.0: h.0.a.w h.0.b.w\nh.1: h.1.a.w h.1.b.w\n";
  EXPECT_EQ(table(maker.graph, options), blocks + "root: embed.w first.w between.w head.w\n");
  options.divides_root = true;
  options.bucket_mb = 1e-9;  // none is joined
  EXPECT_EQ(table(maker.graph, options), "before blocks: embed.w first.w\n" + blocks +
                                             "after blocks: head.w\nroot: between.w\n");
  options.bucket_mb = 1;  // neither end is joined to a block
  EXPECT_EQ(table(maker.graph, options),
            "before blocks: embed.w first.w\nh.0 .. h.1: h.0.a.w h.0.b.w h.1.a.w h.1.b.w\n"
            "after blocks: head.w\nroot: between.w\n");
  maker.node("MatMul", "tied", {x, maker.graph.find("embed.w")});
  options.bucket_mb = 0;
  EXPECT_EQ(table(maker.graph, options), blocks + "root: embed.w first.w between.w head.w\n");
}

TEST_P(DecoderUnits, ATiedHeadKeepsTheRootWhole) {
  EXPECT_EQ(table(decoder(), {.divides_root = true}), table(decoder()));
}

// Stages with different widths hold the blocks; the last stage has only one.
TEST_F(Units, BlocksOfStagesAndTheirOnlyOne) {
  auto block = [&](const std::string& name, int64_t width) {
    for (const char* part : {"a", "b"}) {
      const std::string module = format_text("stages.{}.{}", name, part);
      const int64_t inner = maker.graph.value(x).desc.shape[1];
      const ValueId w = maker.parameter(module + ".w", {inner, width});
      maker.graph.parameters.back().module = module;
      x = maker.node("MatMul", module, {x, w});
    }
  };
  block("0.blocks.0", 8);
  block("0.blocks.1", 8);
  block("1.blocks.0", 4);
  EXPECT_EQ(table(maker.graph),
            "stages.0.blocks.0: stages.0.blocks.0.a.w stages.0.blocks.0.b.w\n"
            "stages.0.blocks.1: stages.0.blocks.1.a.w stages.0.blocks.1.b.w\n"
            "stages.1.blocks.0: stages.1.blocks.0.a.w stages.1.blocks.0.b.w\n");
}

// An exporter gave the number to the first block only.
TEST_F(Units, AFrozenNumberDoesNotTellBlocksApart) {
  for (const std::string block : {"h.0", "h.1"}) {
    x = matmul(x, block + ".a.w", block + ".a");
    if (block == "h.0") {
      const ValueId number = maker.parameter("h.0.number", {});
      maker.graph.parameters.back().module = block;
      maker.graph.parameters.back().trained = false;
      x = maker.node("Mul", "scale", {x, number});
    }
    x = matmul(x, block + ".b.w", block + ".b");
  }
  EXPECT_EQ(table(maker.graph), "h.0: h.0.a.w h.0.b.w\nh.1: h.1.a.w h.1.b.w\n");
}

// The first block in a T5 holds the table of relative positions, which all blocks read.
TEST_F(Units, ABlockWithLittleMoreThanAnotherIsLikeIt) {
  x = matmul(x, "h.0.a.w", "h.0.a");
  const ValueId table_of_all = maker.parameter("h.0.table", {8});
  maker.graph.parameters.back().module = "h.0.a";
  x = matmul(maker.node("Add", "place", {x, table_of_all}), "h.0.b.w", "h.0.b");
  for (const std::string name : {"h.1.a", "h.1.b"}) x = matmul(x, name + ".w", name);
  EXPECT_EQ(table(maker.graph), "h.0: h.0.a.w h.0.table h.0.b.w\nh.1: h.1.a.w h.1.b.w\n");
}

TEST_F(Units, ABlockWithMuchMoreThanAnotherIsNot) {
  for (const std::string name : {"h.0.a", "h.0.b", "h.0.c", "h.1.a", "h.1.b"})
    x = matmul(x, name + ".w", name);
  EXPECT_THAT(table(maker.graph), testing::Not(HasSubstr("h.1:")));
}

TEST_F(Units, AClassThatTheFileDoesNotName) {
  for (const std::string part : {"encoder.layer.0", "encoder.layer.1", "decoder.layer.0"}) {
    for (const std::string name : {".a", ".b"}) x = matmul(x, part + name + ".w", part + name);
  }
  const std::string encoder =
      "encoder.layer.0: encoder.layer.0.a.w encoder.layer.0.b.w\n"
      "encoder.layer.1: encoder.layer.1.a.w encoder.layer.1.b.w\n";
  EXPECT_THAT(table(maker.graph, layers({"demo.BertEncoderLayer"})),
              AllOf(::testing::StartsWith(encoder), HasSubstr("root: decoder.layer.0.a.w")));
  EXPECT_EQ(table(maker.graph, layers({"BertLayer"})),
            encoder + "decoder.layer.0: decoder.layer.0.a.w decoder.layer.0.b.w\n");
  EXPECT_THAT(refusal(maker.graph, layers({"BertBlock"})), HasSubstr("the file names no classes"));
  EXPECT_THAT(refusal(maker.graph, layers({"BertBlock"})),
              HasSubstr("found none; numbered ones are encoder.layer.*"));
}

TEST_F(Units, EqualLayersWithoutNamesAreBlocksOfTheirOwn) {
  for (int i = 0; i < 4; ++i) {
    x = maker.node("Relu", format_text("r{}", i), {matmul(x, format_text("w{}", i), "")});
  }
  EXPECT_EQ(table(maker.graph), "block.0: w0\nblock.1: w1\nblock.2: w2\nblock.3: w3\n");
}

// The second copy reads the value before the first copy, so they are not alike.
TEST_F(Units, CopiesThatAreWiredDifferentlyAreNoBlocks) {
  const ValueId start = x;
  for (int i = 0; i < 2; ++i) {
    const ValueId first = matmul(x, format_text("a{}", i), "");
    x = maker.node("Add", format_text("s{}", i),
                   {matmul(first, format_text("b{}", i), ""), i == 0 ? first : start});
  }
  EXPECT_THAT(table(maker.graph), HasSubstr("no repeated block found, units by size"));
}

TEST_F(Units, BySizeAUnitIsClosedWhenItIsFullButNotWithinANode) {
  const Graph graph = testing::mlp_training_graph(registry, 2, {8, 8, 6, 4, 2});
  EXPECT_EQ(table(graph, {.wrap = WrapPolicy::kSize, .min_params = 60}),
            "w0: w0 b0\nw1: w1 b1 w2 b2\nroot: w3 b3\n");
  EXPECT_EQ(table(graph, {.wrap = WrapPolicy::kNone, .min_params = 60}),
            "root: w0 b0 w1 b1 w2 b2 w3 b3\n");
}

// The layers have 72, 54, 28 and 10 parameters.
TEST_F(Units, NeighboursAreJoinedUpToTheBucket) {
  const Graph graph = testing::mlp_training_graph(registry, 2, {8, 8, 6, 4, 2});
  const auto joined_up_to = [&](int64_t most) {
    PlanOptions options{.wrap = WrapPolicy::kSize, .min_params = 1};
    options.bucket_mb = static_cast<double>(most) * sizeof(float) / (1 << 20);
    return table(graph, options);
  };
  EXPECT_EQ(joined_up_to(0), joined_up_to(10));
  EXPECT_EQ(joined_up_to(0).find(" .. "), std::string::npos);
  EXPECT_EQ(joined_up_to(82), "w0: w0 b0\nw1 .. w2: w1 b1 w2 b2\nw3: w3 b3\n");
  EXPECT_EQ(joined_up_to(1000), "w0 .. w3: w0 b0 w1 b1 w2 b2 w3 b3\n");
  PlanOptions ignoring{.wrap = WrapPolicy::kSize, .min_params = 1, .ignore = {"w1"}};
  ignoring.bucket_mb = 1000.0 * sizeof(float) / (1 << 20);
  EXPECT_EQ(table(graph, ignoring), "w0 .. w3: w0 b0 b1 w2 b2 w3 b3\nignored = w1\n");
}

TEST_F(Units, LayersWithoutTheTransformerPolicyAreRemarked) {
  matmul(x, "h.0.w", "h.0");
  EXPECT_EQ(
      table(maker.graph, {.wrap = WrapPolicy::kNone, .wrap_layers = {"h.*"}, .min_params = 1}),
      "--wrap-layers is only of use with --wrap transformer\nroot: h.0.w\n");
}

TEST_F(Units, WhatNothingIsNamedIsRefusedWithTheNearest) {
  matmul(x, "encoder.weight", "encoder");
  EXPECT_EQ(refusal(maker.graph, ignoring(WrapPolicy::kNone, {"encoder.wieght"})),
            "--ignore encoder.wieght: matches no floating-point initializer of test.onnx; did you "
            "mean 'encoder.weight'?");
}

}  // namespace partition_test
}  // namespace ofsdp

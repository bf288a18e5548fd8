// Operators in older opsets follow the standard's text for their version, or ONNX Runtime
// (tests/oracle/opsets.py compares every operator at every version). Models are in ONNX's textual
// form; expected values are plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/defs/parser.h>

#include <cmath>
#include <functional>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/run_graph.h"

namespace ofsdp {
namespace old_opsets_test {

using onnx_bytes::Folder;
using ::testing::AllOf;
using testing::Floats;
using ::testing::HasSubstr;
using ::testing::Not;

std::string model(int opset, const std::string& graph) {
  return format_text("<ir_version: 8, opset_import: [\"\" : {}]> old {}", opset, graph);
}

std::vector<std::string> numbers(int count) {
  std::vector<std::string> made;
  for (int i = 0; i < count; ++i) made.push_back(format_text("{}.5", i * 7 % 5 - 2));
  return made;
}

Floats values(size_t count) {
  Floats made(count);
  for (size_t i = 0; i < count; ++i) made[i] = static_cast<float>(i * 7 % 11) / 4 - 1;
  return made;
}

class OldOpsets : public ::testing::Test {
 protected:
  Result<Graph> imported(const std::string& text) {
    onnx::ModelProto proto;
    const auto parsed = onnx::OnnxParser::Parse(proto, text.c_str());
    EXPECT_TRUE(parsed.IsOK()) << parsed.ErrorMessage() << text;
    axes.clear();
    for (const auto& dim : proto.graph().input(0).type().tensor_type().shape().dim()) {
      axes.push_back(dim.dim_value());
    }
    stored.clear();
    const auto file = OnnxFile::open(folder.write("old.onnx", proto.SerializeAsString()));
    if (!file.ok()) return input_error("{}", file.error().message());
    OFSDP_ASSIGN_OR_RETURN(Graph graph, import_onnx(*file, registry));
    for (const auto& parameter : graph.parameters) {
      const auto& source = file->initializers()[static_cast<size_t>(parameter.initializer)];
      Floats& to = stored[source.name];
      to.resize(static_cast<size_t>(source.shape.numel()));
      OFSDP_RETURN_IF_ERROR(file->read(source, 0, to));
    }
    return graph;
  }

  // Output y for the model's input x.
  Result<Floats> result(const std::string& text) {
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, imported(text));
    const Shape shape(axes);
    OFSDP_ASSIGN_OR_RETURN(const Graph bound, specialize(graph, {{"x", shape}}, Mode::kTrain));
    auto feeds = stored;
    feeds["x"] = values(static_cast<size_t>(shape.numel()));
    OFSDP_ASSIGN_OR_RETURN(auto all, testing::run_graph(bound, feeds));
    return all[bound.outputs[0]];
  }

  void expect(const std::string& text, size_t count,
              const std::function<double(size_t i, const Floats& x)>& formula, size_t inputs = 24) {
    const auto found = result(text);
    ASSERT_TRUE(found.ok()) << found.error().message() << text;
    ASSERT_EQ(found->size(), count) << text;
    const Floats x = values(inputs);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR((*found)[i], formula(i, x), 1e-5) << i << " of " << text;
    }
  }

  // Both models give the same, bit for bit.
  void expect_same(const std::string& older, const std::string& newer) {
    const auto a = result(older);
    ASSERT_TRUE(a.ok()) << a.error().message() << older;
    const auto b = result(newer);
    ASSERT_TRUE(b.ok()) << b.error().message() << newer;
    EXPECT_EQ(*a, *b) << older;
  }

  std::string message(const std::string& text) {
    const auto graph = imported(text);
    return graph.ok() ? "" : graph.error().message();
  }

  Folder folder;
  Registry registry = make_registry();
  std::map<std::string, Floats> stored;  // of the last imported model
  std::vector<int64_t> axes;             // of the first input
};

struct Pairwise {
  const char* op;
  double (*of)(double a, double b);
};

const Pairwise kPairwise[] = {
    {"Add", [](double a, double b) { return a + b; }},
    {"Sub", [](double a, double b) { return a - b; }},
    {"Mul", [](double a, double b) { return a * b; }},
    {"Div", [](double a, double b) { return a / b; }},
    {"Pow", [](double a, double b) { return std::pow(a, b); }},
    {"Greater", [](double a, double b) { return a > b ? 1.0 : 0.0; }},
    {"Less", [](double a, double b) { return a < b ? 1.0 : 0.0; }},
};

// x is computed, so that only inference knows the shape.
TEST_F(OldOpsets, BroadcastingBeforeOpset7StartsAtTheAxis) {
  for (const auto& [op, of] : kPairwise) {
    const bool compares = std::string(op) == "Greater" || std::string(op) == "Less";
    const std::string last = compares ? "y = Cast<to = 1> (t)" : "y = Identity (t)";
    for (const auto& [axis, b, at] :
         {std::tuple{1, "float[3] b = {1, 2, 3}", +[](size_t i) { return i / 4 % 3; }},
          std::tuple{0, "float[2] b = {1, 2}", +[](size_t i) { return i / 12; }},
          std::tuple{3, "float[2] b = {1, 2}", +[](size_t i) { return i % 2; }},
          std::tuple{1, "float[3, 2] b = {1, 2, 3, 4, 5, 6}",
                     +[](size_t i) { return i / 2 % 6; }}}) {
      const std::string text = format_text(
          "(float[2, 3, 2, 2] x) => (float[2, 3, 2, 2] y) <{}> "
          "{{ a = Abs (x) t = {}<broadcast = 1, axis = {}> (a, b) {} }}",
          b, op, axis, last);
      expect(model(6, text), 24, [&, of = of, at = at](size_t i, const Floats& x) {
        return of(std::abs(static_cast<double>(x[i])), static_cast<double>(at(i) + 1));
      });
    }
  }
}

// Schemas before opset 6 infer few shapes.
TEST_F(OldOpsets, RanksAreKnownInFilesOfOpset1Too) {
  const std::string text =
      "(float[1, 3, 2, 4] x) => (float[1, 3, 2, 4] y) <float[3] b = {1, 2, 3}> { a = Relu (x) "
      "u = Upsample<height_scale = 1.0, width_scale = 1.0> (a) y = Add<broadcast = 1, axis = 1> "
      "(u, "
      "b) }";
  expect(model(1, text), 24, [](size_t i, const Floats& x) {
    return std::max(static_cast<double>(x[i]), 0.0) + static_cast<double>(i / 8 + 1);
  });
}

TEST_F(OldOpsets, BroadcastingOfBooleansAndEqualityStartsAtTheAxisToo) {
  const std::string graph =
      "(float[2, 3, 2, 2] x) => (float[2, 3, 2, 2] y) <float[3] b = {0, 1, 0}> "
      "{ p = Cast<to = 9> (b) z = Sub (x, x) n = Cast<to = 9> (z) "
      "t = %<broadcast = 1, axis = 1> (n, p) y = Cast<to = 1> (t) }";
  for (const std::string op : {"And", "Or", "Xor", "Equal"}) {
    std::string text = graph;
    text.replace(text.find('%'), 1, op);
    expect(model(6, text), 24, [&](size_t i, const Floats&) {
      const bool b = i / 4 % 3 == 1;
      return op == "And" ? 0.0 : (op == "Equal" ? !b : b) ? 1.0 : 0.0;
    });
  }
}

TEST_F(OldOpsets, PReluBeforeOpset7HasASlopeForEachChannel) {
  const std::string graph =
      "(float[2, 3, 1, 4] x) => (float[2, 3, 1, 4] y) <float[3] s = {0.5, 2, 4}> "
      "{ a = Neg (x) y = PRelu (a, s) }";
  expect(model(6, graph), 24, [](size_t i, const Floats& x) {
    const double slopes[] = {0.5, 2, 4};
    const double a = -static_cast<double>(x[i]);
    return a > 0 ? a : a * slopes[i / 4 % 3];
  });
  // One value serves all channels.
  expect(model(6,
               "(float[2, 3, 4] x) => (float[2, 3, 4] y) <float[1] s = {0.5}> "
               "{ y = PRelu (x, s) }"),
         24, [](size_t i, const Floats& x) { return x[i] > 0 ? x[i] : x[i] / 2; });
}

// Rows have 24, 12 and 4 elements.
TEST_F(OldOpsets, HardmaxSoftmaxAndLogSoftmaxBeforeOpset13HaveRowsBehindTheAxis) {
  for (const auto& [axis, row] : {std::pair{0, 24}, std::pair{1, 12}, std::pair{2, 4}}) {
    const auto whole = static_cast<size_t>(row);
    const auto text = [&](const char* op) {
      return model(11, format_text("(float[2, 3, 4] x) => (float[2, 3, 4] y) "
                                   "{{ y = {}<axis = {}> (x) }}",
                                   op, axis));
    };
    const auto sum = [whole](size_t i, const Floats& x) {
      double total = 0;
      for (size_t k = i / whole * whole; k < i / whole * whole + whole; ++k) {
        total += std::exp(static_cast<double>(x[k]));
      }
      return total;
    };
    expect(text("Softmax"), 24, [&](size_t i, const Floats& x) {
      return std::exp(static_cast<double>(x[i])) / sum(i, x);
    });
    expect(text("LogSoftmax"), 24, [&](size_t i, const Floats& x) {
      return static_cast<double>(x[i]) - std::log(sum(i, x));
    });
    expect(text("Hardmax"), 24, [&](size_t i, const Floats& x) {
      const auto begin = x.begin() + static_cast<int64_t>(i / whole * whole);
      return std::max_element(begin, begin + row) - x.begin() == static_cast<int64_t>(i) ? 1 : 0;
    });
  }
  expect(model(1, "(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax (x) }"), 24,
         [](size_t i, const Floats& x) {
           const auto begin = x.begin() + static_cast<int64_t>(i / 12 * 12);
           return std::max_element(begin, begin + 12) - x.begin() == static_cast<int64_t>(i);
         });
}

// A branch reads the value under its name in the file.
TEST_F(OldOpsets, SubgraphsReadTheWholeResultAndAreConvertedToo) {
  const std::string text =
      "(float[2, 3, 4] x) => (float[2, 3, 4] y) { h = Hardmax (x) c = Constant<value = bool {1}> "
      "() "
      "y = If (c) <then_branch = yes () => (float[2, 3, 4] a) { g = Softmax (x) a = Add (h, g) }, "
      "else_branch = no () => (float[2, 3, 4] b) { b = Identity (x) }> }";
  expect(model(11, text), 24, [](size_t i, const Floats& x) {
    const auto begin = x.begin() + static_cast<int64_t>(i / 12 * 12);
    double total = 0;
    for (auto it = begin; it != begin + 12; ++it) total += std::exp(static_cast<double>(*it));
    const bool most = std::max_element(begin, begin + 12) - x.begin() == static_cast<int64_t>(i);
    return std::exp(static_cast<double>(x[i])) / total + (most ? 1 : 0);
  });
}

double linear(const Floats& x, size_t row, size_t size, double at) {
  const auto left = static_cast<size_t>(at);
  const size_t right = std::min(left + 1, size - 1);
  const double part = at - static_cast<double>(left);
  return static_cast<double>(x[row * size + left]) * (1 - part) +
         static_cast<double>(x[row * size + right]) * part;
}

TEST_F(OldOpsets, ResizeOfOpset10AndUpsampleStartAtTheCorner) {
  const char* resize =
      "(float[6, 4] x) => (float[6, 8] y) <float[2] s = {1, 2}> "
      "{ y = Resize<mode = \"linear\"> (x, s) }";
  const char* upsample9 =
      "(float[6, 4] x) => (float[6, 8] y) <float[2] s = {1, 2}> "
      "{ y = Upsample<mode = \"linear\"> (x, s) }";
  const char* upsample7 =
      "(float[6, 4] x) => (float[6, 8] y) "
      "{ y = Upsample<mode = \"linear\", scales = [1.0, 2.0]> (x) }";
  const char* upsample1 =
      "(float[1, 1, 6, 4] x) => (float[1, 1, 6, 8] y) "
      "{ y = Upsample<mode = \"bilinear\", height_scale = 1.0, width_scale = 2.0> (x) }";
  const auto formula = [](size_t i, const Floats& x) {
    return linear(x, i / 8, 4, static_cast<double>(i % 8) / 2);
  };
  expect(model(10, resize), 48, formula);
  expect(model(9, upsample9), 48, formula);
  expect(model(7, upsample7), 48, formula);
  expect(model(1, upsample1), 48, formula);
}

// Scales 0.75 and 1.5 for 6 and 4: rounded up where an axis shrinks, down where it grows.
TEST_F(OldOpsets, NearestOfOpset10RoundsByTheDirectionOfTheAxis) {
  const auto formula = [](size_t i, const Floats& x) {
    const auto row = static_cast<size_t>(std::ceil(static_cast<double>(i / 6) / 0.75));
    const auto column = static_cast<size_t>(static_cast<double>(i % 6) / 1.5);
    return x[row * 4 + column];
  };
  // Scales in the file, and scales computed before the run.
  for (const char* scales :
       {"<float[2] s = {0.75, 1.5}> { ", "{ s = Constant<value = float[2] {0.75, 1.5}> () ",
        "{ h = Constant<value = float[2] {1.5, 3}> () t = Constant<value = float[1] {2}> () "
        "s = Div (h, t) "}) {
    expect(model(10,
                 format_text("(float[6, 4] x) => (float[4, 6] y) {} y = Resize (x, s) }}", scales)),
           24, formula);
  }
}

TEST_F(OldOpsets, TfHalfPixelForNnOfOpset11) {
  const std::string graph =
      "(float[24] x) => (float[18] y) <float[0] none = {}, float[1] s = {0.75}> "
      "{ y = Resize<coordinate_transformation_mode = \"tf_half_pixel_for_nn\", nearest_mode = "
      "\"%\"> (x, none, s) }";
  const auto text = [&](const char* rounding) {
    std::string made = graph;
    return model(11, made.replace(made.find('%'), 1, rounding));
  };
  expect(text("floor"), 18, [](size_t i, const Floats& x) {
    return x[static_cast<size_t>((static_cast<double>(i) + 0.5) / 0.75)];
  });
  expect(text("round_prefer_floor"), 18, [](size_t i, const Floats& x) {
    return x[static_cast<size_t>(std::ceil((static_cast<double>(i) + 0.5) / 0.75 - 0.5))];
  });
  EXPECT_THAT(message(text("ceil")), HasSubstr("(Resize) of opset 12: tf_half_pixel_for_nn"));
}

TEST_F(OldOpsets, GroupNormalizationOfOpset18HasAScaleForEachGroup) {
  const std::string graph =
      "(float[1, 4, 6] x) => (float[1, 4, 6] y) <float[2] s = {2, 3}, float[2] b = {5, 7}> "
      "{ y = GroupNormalization<num_groups = 2, epsilon = 0.5> (x, s, b) }";
  expect(model(18, graph), 24, [](size_t i, const Floats& x) {
    const size_t group = i / 12;
    double mean = 0, variance = 0;
    for (size_t k = 0; k < 12; ++k) mean += static_cast<double>(x[group * 12 + k]) / 12;
    for (size_t k = 0; k < 12; ++k) {
      variance += std::pow(static_cast<double>(x[group * 12 + k]) - mean, 2) / 12;
    }
    const double normal = (static_cast<double>(x[i]) - mean) / std::sqrt(variance + 0.5);
    return group == 0 ? normal * 2 + 5 : normal * 3 + 7;
  });
}

TEST_F(OldOpsets, BatchNormalizationBeforeOpset9MayNormalizeEachElement) {
  const std::string graph =
      "(float[4, 2, 3] x) => (float[4, 2, 3] y) <float[2, 3] s = {1, 2, 3, 4, 5, 6}, float[2, 3] b "
      "= {6, 5, 4, 3, 2, 1}, float[2, 3] m = {1, 1, 1, 2, 2, 2}, float[2, 3] v = {1, 4, 9, 1, 4, "
      "9}> { y = BatchNormalization<%epsilon = 0.0> (x, s, b, m, v) }";
  const auto formula = [](size_t i, const Floats& x) {
    const size_t k = i % 6;
    const double mean = k < 3 ? 1 : 2, deviation = static_cast<double>(k % 3 + 1);
    return (static_cast<double>(x[i]) - mean) / deviation * static_cast<double>(k + 1) +
           static_cast<double>(6 - k);
  };
  for (const auto& [opset, more] :
       {std::pair{8, "spatial = 0, "}, std::pair{6, "spatial = 0, is_test = 1, "},
        std::pair{1,
                  "spatial = 0, is_test = 1, consumed_inputs = [0, "
                  "0, 0, 1, 1], "}}) {
    std::string text = graph;
    expect(model(opset, text.replace(text.find('%'), 1, more)), 24, formula);
  }
}

TEST_F(OldOpsets, BatchNormalizationBeforeOpset7SaysWhetherItTests) {
  const std::string inputs =
      "<float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, "
      "1, "
      "1}> ";
  const auto text = [&](const char* outputs, int is_test) {
    return model(6, format_text("(float[2, 3, 4] x) => (float[2, 3, 4] y) {} {{ {} = "
                                "BatchNormalization<is_test = {}> (x, s, b, m, v) }}",
                                inputs, outputs, is_test));
  };
  const auto training = imported(text("y, m1, v1, m2, v2", 0));
  ASSERT_TRUE(training.ok()) << training.error().message();
  EXPECT_EQ(training->nodes[0].attributes.i("training_mode", 0), 1);
  const auto testing = imported(text("y, m1, v1, m2, v2", 1));
  ASSERT_TRUE(testing.ok()) << testing.error().message();
  EXPECT_EQ(testing->nodes[0].attributes.i("training_mode", 0), 0);
  EXPECT_THAT(message(text("y", 0)),
              HasSubstr("node 'y' (BatchNormalization) of opset 6: is_test: expected 1"));
}

TEST_F(OldOpsets, DropoutThatDoesNotTestIsActiveInTraining) {
  for (const auto& [is_test, inputs] :
       {std::pair{"is_test = 0, ", 3u}, std::pair{"is_test = 1, ", 2u}, std::pair{"", 2u}}) {
    const auto graph = imported(model(6, format_text("(float[2, 3, 4] x) => (float[2, 3, 4] y) "
                                                     "{{ y = Dropout<{}ratio = 0.25> (x) }}",
                                                     is_test)));
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    const Node& dropout = graph->nodes.back();
    ASSERT_EQ(dropout.op->name, "Dropout");
    EXPECT_EQ(dropout.inputs.size(), inputs) << is_test;
    const auto training = specialize(*graph, {{"x", Shape(axes)}}, Mode::kTrain);
    ASSERT_TRUE(training.ok()) << training.error().message();
    const Value& ratio = training->value(training->nodes.back().inputs[1]);
    ASSERT_NE(ratio.constant, nullptr);
    EXPECT_EQ(ratio.constant->as<float>()[0], 0.25f);
  }
}

TEST_F(OldOpsets, AMaskBeforeOpset10HasNumbers) {
  expect(model(7,
               "(float[2, 3, 4] x) => (float[2, 3, 4] y) "
               "{ d, m = Dropout<ratio = 0.25> (x) y = Add (d, m) }"),
         24, [](size_t i, const Floats& x) { return x[i] + 1; });
}

TEST_F(OldOpsets, OperatorsOfOpset1) {
  const auto text = [](const std::string& axes, const std::string& body) {
    return model(1, "(float[2, 3, 4] x) => (float[" + axes + "] y) " + body);
  };
  expect(text("2, 3, 4", "{ t = Cast<to = \"INT32\"> (x) y = Cast<to = \"float\"> (t) }"), 24,
         [](size_t i, const Floats& x) { return std::trunc(x[i]); });
  expect(text("2, 9, 4", "<float[1] n = {3}, float[1] a = {1}> { t = Abs (x) y = Tile (t, n, a) }"),
         72, [](size_t i, const Floats& x) { return std::abs(x[i / 36 * 12 + i % 36 % 12]); });
  expect(text("2, 3, 4", "{ y = Selu (x) }"), 24, [](size_t i, const Floats& x) {
    const auto v = static_cast<double>(x[i]);
    return 1.0507 * (v > 0 ? v : 1.6732 * (std::exp(v) - 1));
  });
  expect(text("2, 2, 4", "{ a, y = Split<axis = 1, split = [1, 2]> (x) }"), 16,
         [](size_t i, const Floats& x) { return x[i / 8 * 12 + 4 + i % 8]; });
  expect(text("2, 2, 4", "<float[2] s = {1, 2}> { a, y = Split<axis = 1> (x, s) }"), 16,
         [](size_t i, const Floats& x) { return x[i / 8 * 12 + 4 + i % 8]; });
  expect(text("2, 6, 4", "{ y = Concat (x, x) }"), 48,
         [](size_t i, const Floats& x) { return x[i / 24 * 12 + i % 12]; });
  expect(text("4, 6", "{ y = Reshape<shape = [4, 6]> (x) }"), 24,
         [](size_t i, const Floats& x) { return x[i]; });
  expect(text("2, 3, 4", "{ y = Pad<paddings = [0, 0, 0, 0, 0, 0]> (x) }"), 24,
         [](size_t i, const Floats& x) { return x[i]; });
  expect(text("2, 3, 2", "{ y = LpPool<p = 1.0, kernel_shape = [2], strides = [2]> (x) }"), 12,
         [](size_t i, const Floats& x) { return std::abs(x[2 * i]) + std::abs(x[2 * i + 1]); });
  expect(text("2, 3, 1", "{ y = GlobalLpPool<p = 1.0> (x) }"), 6, [](size_t i, const Floats& x) {
    double sum = 0;
    for (size_t k = 0; k < 4; ++k) sum += std::abs(static_cast<double>(x[4 * i + k]));
    return sum;
  });
}

TEST_F(OldOpsets, LimitsAndPadsOfOpset6HaveTheTypeOfTheData) {
  expect(
      model(6,
            "(float[24] x) => (float[25] y) <double[24] d, double[24] c> { d = Cast<to = 11> (x) "
            "c = Clip<min = -0.5, max = 0.5> (d) p = Pad<pads = [1, 0], value = 0.25> (c) "
            "y = Cast<to = 1> (p) }"),
      25, [](size_t i, const Floats& x) {
        return i == 0 ? 0.25 : std::clamp(static_cast<double>(x[i - 1]), -0.5, 0.5);
      });
}

TEST_F(OldOpsets, RecurrentOperatorsBeforeOpset7GiveTheWholeSequence) {
  for (const auto& [op, gates] : {std::pair{"RNN", 1}, std::pair{"GRU", 3}, std::pair{"LSTM", 4}}) {
    const auto text = [&](int opset, const char* more) {
      return model(opset,
                   format_text("(float[4, 2, 3] x) => (float[4, 1, 2, 2] y) "
                               "{{ w = Constant<value = float[1, {}, "
                               "3] {{{}}}> () r = Constant<value = float[1, {}, 2] {{{}}}> () "
                               "y = {}<hidden_size = 2{}> (x, w, r) }}",
                               2 * gates, joined(numbers(6 * gates), ", "), 2 * gates,
                               joined(numbers(4 * gates), ", "), op, more));
    };
    expect_same(text(6, ", output_sequence = 1"), text(14, ""));
    expect_same(text(3, ", output_sequence = 1"), text(14, ""));
  }
}

// A line for users: file, node, operator, opset, and no place in sources.
TEST_F(OldOpsets, MessagesNameNodeAndOpset) {
  const auto is_good = [](const char* where) {
    return AllOf(HasSubstr("old.onnx: "), HasSubstr(where), Not(HasSubstr("third_party")),
                 Not(HasSubstr("Assertion")), Not(HasSubstr("\n")));
  };
  EXPECT_THAT(message(model(6,
                            "(float[N, 3] x, float[3, 4] b) => (float[N, 3] y) "
                            "{ [adds] y = Add<broadcast = 1, axis = 1> (x, b) }")),
              AllOf(is_good("node 'adds' (Add) of opset 6: axis: expected"), HasSubstr("axis 1")));
  EXPECT_THAT(
      message(model(1, "(float[2, 3] x) => (float[2, 3] y) { y = Cast<to = \"FLOTA\"> (x) }")),
      is_good("node 'y' (Cast) of opset 5: to: expected the name of an element type, found"));
  EXPECT_THAT(
      message(
          model(1, "(float[2, 3] x) => (float[3, 8] y) { y = Pad<paddings = [0, 1, 2, 3]> (x) }")),
      is_good("node 'y' (Pad) of opset 1: paddings: expected"));
  EXPECT_THAT(message(model(4, "(float[2, 3] x) => (float[3, 2] y) { y = Reshape (x) }")),
              is_good("node 'y' (Reshape) of opset 4"));
}

TEST_F(OldOpsets, EveryVersionOfAnOperatorIsTaken) {
  for (const char* op : {"And", "Or", "Xor", "Equal", "Greater", "Less", "Cast", "Tile", "RNN",
                         "GRU", "LSTM", "Pad", "Split", "LpPool", "GlobalLpPool", "Upsample"}) {
    EXPECT_EQ(oldest_opset(op), 1) << op;
  }
  EXPECT_EQ(oldest_opset("GroupNormalization"), 18);
}

}  // namespace old_opsets_test
}  // namespace ofsdp

// The recipes of idioms: pieces that exporters write and that fusions look for, each with near
// misses, in which one part is another.
#include <cmath>

#include "tests/graphs/draw.h"

namespace ofsdp::graphs {
namespace {

constexpr int64_t kMissed = 4;  // one in so many is a near miss

std::string mean(Draw& draw, const std::string& x, int64_t axis) {
  return draw.emit1("ReduceMean", {x, draw.ints({axis})}, {{"keepdims", int64_t{1}}});
}

// Both orders of the operands of an operator that has none.
std::string either(Draw& draw, const char* op, const std::string& a, const std::string& b) {
  return draw.one_in(2) ? draw.emit1(op, {a, b}) : draw.emit1(op, {b, a});
}

void gelu_of_erf(Draw& draw, const std::string&) {
  std::string x = draw.any();
  if (draw.one_in(2) && draw.rank(x) > 0) {
    x = either(draw, "Add", x, draw.weight({draw.axes(x).back()}, 1));
  }
  const bool missed = draw.one_in(kMissed);
  const double root = missed && draw.one_in(2) ? 1.5 : std::sqrt(2.0);
  const std::string inside = draw.one_in(2) ? draw.emit1("Div", {x, draw.scalar(root)})
                                            : either(draw, "Mul", x, draw.scalar(1 / root));
  const std::string one =
      either(draw, "Add", draw.emit1("Erf", {inside}), draw.scalar(missed ? 0.9 : 1));
  const std::string half = draw.scalar(missed && draw.one_in(2) ? 0.4 : 0.5);
  switch (draw.below(3)) {
    case 0:
      either(draw, "Mul", either(draw, "Mul", x, one), half);
      break;
    case 1:
      either(draw, "Mul", either(draw, "Mul", x, half), one);
      break;
    default:
      either(draw, "Mul", x, either(draw, "Mul", one, half));
      break;
  }
}

void gelu_of_tanh(Draw& draw, const std::string&) {
  const std::string x = draw.any();
  const bool missed = draw.one_in(kMissed);
  const std::string cube = draw.one_in(2) ? draw.emit1("Pow", {x, draw.scalar(3)})
                                          : draw.emit1("Mul", {draw.emit1("Mul", {x, x}), x});
  const std::string small = either(draw, "Mul", cube, draw.scalar(missed ? 0.05 : 0.044715));
  const std::string sum = either(draw, "Add", x, small);
  const std::string t =
      draw.emit1("Tanh", {either(draw, "Mul", sum, draw.scalar(std::sqrt(2 / M_PI)))});
  const std::string one = either(draw, "Add", t, draw.scalar(1));
  either(draw, "Mul", either(draw, "Mul", x, draw.scalar(0.5)), one);
}

void layer_norm_in_pieces(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 4);
  const bool missed = draw.one_in(kMissed);
  const int64_t last = draw.one_in(2) ? -1 : draw.rank(x) - 1;
  const int64_t other = missed && draw.one_in(2) ? 0 : last;
  const std::string away = draw.emit1("Sub", {x, mean(draw, x, other)});
  const std::string square =
      draw.one_in(2) ? draw.emit1("Pow", {away, draw.scalar(2)}) : draw.emit1("Mul", {away, away});
  const std::string variance = mean(draw, square, missed && draw.one_in(2) ? 0 : last);
  const std::string sum = either(draw, "Add", variance, draw.scalar(draw.one_in(2) ? 1e-3 : 0.1));
  const std::string root = draw.emit1("Sqrt", {sum});
  const std::string unit =
      missed && draw.one_in(2) ? draw.emit1("Mul", {away, root}) : draw.emit1("Div", {away, root});
  const int64_t width = draw.axes(x).back();
  const Axes shape = missed && draw.one_in(2)
                         ? Axes{draw.axes(x)[static_cast<size_t>(draw.rank(x) - 2)], 1}
                         : Axes{width};
  const std::string scaled = either(draw, "Mul", unit, draw.weight(shape, 1));
  if (!draw.one_in(3)) either(draw, "Add", scaled, draw.weight({width}, 1));
}

void rms_norm_in_pieces(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 4);
  const bool missed = draw.one_in(kMissed);
  const std::string square =
      draw.one_in(2) ? draw.emit1("Pow", {x, draw.scalar(2)}) : draw.emit1("Mul", {x, x});
  const std::string sum =
      either(draw, "Add", mean(draw, square, missed ? 0 : -1), draw.scalar(1e-3));
  const std::string root = draw.emit1("Sqrt", {sum});
  const std::string unit = draw.one_in(2)
                               ? draw.emit1("Div", {x, root})
                               : either(draw, "Mul", x, draw.emit1("Reciprocal", {root}));
  either(draw, "Mul", unit, draw.weight({draw.axes(x).back()}, 1));
}

void linear(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 4);
  const int64_t k = draw.axes(x).back(), n = draw.between(1, 9);
  const bool transposed = draw.one_in(2);
  const std::string w = transposed
                            ? draw.emit1("Transpose", {draw.weight({n, k})}, {{"perm", Axes{1, 0}}})
                            : draw.weight({k, n});
  const std::string product = draw.emit1("MatMul", {x, w});
  Axes bias{n};
  if (draw.one_in(kMissed))
    bias = draw.one_in(2)
               ? Axes{1, n}
               : Axes{draw.axes(product)[static_cast<size_t>(draw.rank(product) - 2)], 1};
  const std::string sum = either(draw, "Add", product, draw.weight(bias, 1));
  if (draw.one_in(2)) draw.emit1(draw.one_of(Names{"Relu", "Tanh", "Gelu", "Sigmoid"}), {sum});
}

std::string heads_of(Draw& draw, const std::string& x, int64_t heads, const Axes& perm) {
  const Axes& shape = draw.axes(x);
  const std::string apart =
      draw.emit1("Reshape", {x, draw.ints({shape[0], shape[1], heads, shape[2] / heads})});
  return draw.emit1("Transpose", {apart}, {{"perm", perm}});
}

// The three parts of one product, as GPT-2 has them.
Names packed_projection(Draw& draw, const std::string& x, int64_t width) {
  std::string all = draw.emit1("MatMul", {x, draw.weight({draw.axes(x).back(), 3 * width})});
  if (draw.one_in(2)) all = either(draw, "Add", all, draw.weight({3 * width}, 1));
  return draw.emit("Split", {all, draw.ints({width, width, width})}, {{"axis", int64_t{2}}}, 3);
}

// Causal or not, with numbers of its own (ALiBi) or without.
std::vector<double> mask_of(Draw& draw, int64_t tokens) {
  const bool causal = draw.one_in(2), biased = !causal || draw.one_in(3);
  std::vector<double> mask;
  for (int64_t i = 0; i < tokens * tokens; ++i) {
    const bool hidden = causal && i % tokens > i / tokens;
    mask.push_back(hidden ? kHidden : biased ? draw.real(-2, 2) : 0);
  }
  return mask;
}

void attention_in_pieces(Draw& draw, const std::string&) {
  const int64_t heads = draw.between(1, 2), size = draw.between(1, 3), width = heads * size;
  const int64_t tokens = draw.between(2, 4);
  const std::string x = draw.of_shape({draw.graph.batch, tokens, draw.between(2, 5)});
  const int64_t in = draw.axes(x).back();
  const auto projected = [&] {
    const std::string product = draw.emit1("MatMul", {x, draw.weight({in, width})});
    return draw.one_in(2) ? either(draw, "Add", product, draw.weight({width}, 1)) : product;
  };
  const Names packed = draw.one_in(3) ? packed_projection(draw, x, width) : Names{};
  size_t parts = 0;
  const auto operand = [&] { return packed.empty() ? projected() : packed[parts++]; };
  const bool missed = draw.one_in(kMissed);
  const std::string q = heads_of(draw, operand(), heads, {0, 2, 1, 3});
  const std::string v = heads_of(draw, operand(), heads, {0, 2, 1, 3});
  std::string k;
  if (draw.one_in(2)) {
    k = heads_of(draw, operand(), heads, {0, 2, 3, 1});
  } else {
    k = draw.emit1("Transpose", {heads_of(draw, operand(), heads, {0, 2, 1, 3})},
                   {{"perm", Axes{0, 1, 3, 2}}});
  }
  const double scale = missed && draw.one_in(2) ? 1.7 : std::sqrt(static_cast<double>(size));
  std::string scores;
  switch (draw.below(3)) {
    case 0:
      scores = draw.emit1("Div", {draw.emit1("MatMul", {q, k}), draw.scalar(scale)});
      break;
    case 1:
      scores = either(draw, "Mul", draw.emit1("MatMul", {q, k}), draw.scalar(1 / scale));
      break;
    default:
      scores = draw.emit1("MatMul", {draw.emit1("Div", {q, draw.scalar(scale)}), k});
      break;
  }
  if (draw.one_in(2)) {
    const auto mask = draw.constant({DType::kFloat32, {tokens, tokens}}, mask_of(draw, tokens));
    scores = either(draw, "Add", scores, mask);
  }
  const int64_t axis = missed && draw.one_in(2) ? 2 : draw.one_in(2) ? -1 : 3;
  const std::string context =
      draw.emit1("MatMul", {draw.emit1("Softmax", {scores}, {{"axis", axis}}), v});
  if (draw.one_in(4)) return;
  const std::string back = draw.emit1("Transpose", {context}, {{"perm", Axes{0, 2, 1, 3}}});
  draw.emit1("Reshape", {back, draw.ints({draw.graph.batch, tokens, width})});
}

void rotary_in_pieces(Draw& draw, const std::string&) {
  const int64_t tokens = draw.between(2, 4), size = 2 * draw.between(1, 3);
  const std::string x = draw.of_shape({draw.graph.batch, draw.between(1, 2), tokens, size});
  const bool missed = draw.one_in(kMissed);
  const int64_t half = size / 2;
  const std::string first =
      draw.emit1("Slice", {x, draw.ints({0}), draw.ints({half}), draw.ints({3})});
  const std::string second =
      draw.emit1("Slice", {x, draw.ints({half}), draw.ints({size}), draw.ints({3})});
  const std::string turned =
      missed && draw.one_in(2)
          ? draw.emit1("Concat", {second, first}, {{"axis", int64_t{3}}})
          : draw.emit1("Concat", {draw.emit1("Neg", {second}), first}, {{"axis", int64_t{3}}});
  std::vector<double> cosines, sines;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = missed && draw.one_in(2) ? i : i % half;
      const double angle = static_cast<double>(t) * std::pow(10.0, -static_cast<double>(place));
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
  const TensorDesc desc{DType::kFloat32, {1, 1, tokens, size}};
  const std::string a = either(draw, "Mul", x, draw.constant(desc, cosines));
  either(draw, "Add", a, either(draw, "Mul", turned, draw.constant(desc, sines)));
}

void likelihood(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 2);
  const int64_t classes = draw.axes(x)[1];
  const int64_t axis = draw.one_in(kMissed) ? 0 : draw.one_in(2) ? 1 : -1;
  const std::string logs = draw.emit1("LogSoftmax", {x}, {{"axis", axis}});
  std::vector<double> labels;
  for (int64_t i = 0; i < draw.axes(x)[0]; ++i)
    labels.push_back(static_cast<double>(draw.below(classes)));
  draw.emit1("NegativeLogLikelihoodLoss",
             {logs, draw.constant({DType::kInt64, {draw.axes(x)[0]}}, labels)},
             {{"reduction", draw.one_of(Names{"mean", "sum"})}});
  if (draw.one_in(3)) draw.emit1("Tanh", {logs});
}

void pool_and_relu(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(4, 4);
  const Axes& shape = draw.axes(x);
  const Axes kernel{std::min<int64_t>(2, shape[2]), std::min<int64_t>(2, shape[3])};
  const Attributes attributes{{"kernel_shape", kernel}, {"strides", Axes{draw.between(1, 2), 1}}};
  if (draw.one_in(2)) {
    draw.emit1("Relu", {draw.emit1("MaxPool", {x}, attributes)});
  } else {
    draw.emit1("MaxPool", {draw.emit1("Relu", {x})}, attributes);
  }
}

// Chains of elementwise operators with one reader each.
void chain(Draw& draw, const std::string&) {
  std::string x = draw.any();
  const int64_t length = draw.between(2, 5);
  for (int64_t i = 0; i < length; ++i) {
    static const Names kOps = {"Relu", "Tanh", "Sigmoid", "Neg", "Abs",
                               "Mul",  "Add",  "Sub",     "Clip"};
    const std::string op = draw.one_of(kOps);
    if (op == "Mul" || op == "Add" || op == "Sub") {
      x = draw.emit1(
          op, {x, draw.one_in(2) ? draw.scalar(draw.real(-1.5, 1.5)) : draw.fitting(draw.axes(x))});
    } else if (op == "Clip") {
      x = draw.emit1(op, {x, draw.scalar(-0.7), draw.scalar(0.9)});
    } else {
      x = draw.emit1(op, {x});
    }
  }
}

// Convolution, normalization and activation, channels last at their best.
void image_block(Draw& draw, const std::string&) {
  const std::string x =
      draw.of_shape({draw.graph.batch, draw.between(1, 4), draw.between(2, 5), draw.between(2, 5)});
  const int64_t channels = draw.between(1, 5);
  std::string y = draw.emit1("Conv", {x, draw.weight({channels, draw.axes(x)[1], 2, 2})},
                             {{"pads", Axes{1, 0, 0, 1}}, {"kernel_shape", Axes{2, 2}}});
  if (draw.one_in(2)) y = draw.emit1("Mul", {y, draw.weight({channels, 1, 1}, 1)});
  if (draw.one_in(2)) y = draw.emit1("Relu", {y});
  if (draw.one_in(2)) y = draw.emit1("Add", {y, draw.emit1("Tanh", {y})});
  if (draw.one_in(2)) y = draw.emit1("AveragePool", {y}, {{"kernel_shape", Axes{2, 1}}});
  if (draw.one_in(2)) y = draw.emit1("Transpose", {y}, {{"perm", Axes{0, 2, 3, 1}}});
  if (draw.one_in(3)) draw.emit1("GlobalAveragePool", {y});
}

void residual(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 3);
  const int64_t width = draw.axes(x).back();
  std::string y = x;
  if (draw.has("LayerNormalization")) {
    y = draw.emit1("LayerNormalization", {x, draw.weight({width}, 1), draw.weight({width}, 1)},
                   {{"epsilon", 1e-2f}});
  }
  y = draw.emit1("MatMul", {y, draw.weight({width, width})});
  either(draw, "Add", x, draw.one_in(2) ? draw.emit1("Tanh", {y}) : y);
}

}  // namespace

std::vector<Recipe> idiom_recipes() {
  return {{"gelu_of_erf", 6, gelu_of_erf},
          {"gelu_of_tanh", 6, gelu_of_tanh},
          {"layer_norm_in_pieces", 6, layer_norm_in_pieces},
          {"rms_norm_in_pieces", 6, rms_norm_in_pieces},
          {"linear", 8, linear},
          {"attention_in_pieces", 8, attention_in_pieces},
          {"rotary_in_pieces", 4, rotary_in_pieces},
          {"likelihood", 4, likelihood},
          {"pool_and_relu", 4, pool_and_relu},
          {"chain", 6, chain},
          {"image_block", 6, image_block},
          {"residual", 6, residual}};
}

}  // namespace ofsdp::graphs

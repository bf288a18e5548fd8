// The recipes of idioms: pieces that exporters write and fusions look for, each with near misses. A
// near miss differs in exactly one part: with two, a fusion would refuse for either.
#include <cmath>

#include "tests/graphs/draw.h"

namespace ofsdp::graphs {
namespace {

std::string mean(Draw& draw, const std::string& x, int64_t axis) {
  return draw.emit1("ReduceMean", {x, draw.ints({axis})}, {{"keepdims", int64_t{1}}});
}

void gelu_of_erf(Draw& draw, const std::string&) {
  enum : int64_t { kRoot = 1, kOne, kHalf, kGate };
  std::string x = draw.any();
  if (draw.one_in(2) && draw.rank(x) > 0) {
    x = draw.either("Add", x, draw.weight({draw.axes(x).back()}, 1));
  }
  const int64_t missed = draw.missed(kGate);
  const double root = missed == kRoot ? 1.5 : std::sqrt(2.0);
  const std::string in = missed == kGate ? draw.emit1("Tanh", {x}) : x;
  const std::string inside = draw.one_in(2) ? draw.emit1("Div", {in, draw.scalar(root)})
                                            : draw.either("Mul", in, draw.scalar(1 / root));
  const std::string one =
      draw.either("Add", draw.emit1("Erf", {inside}), draw.scalar(missed == kOne ? 0.9 : 1));
  const std::string half = draw.scalar(missed == kHalf ? 0.4 : 0.5);
  switch (draw.below(3)) {
    case 0:
      draw.either("Mul", draw.either("Mul", x, one), half);
      break;
    case 1:
      draw.either("Mul", draw.either("Mul", x, half), one);
      break;
    default:
      draw.either("Mul", x, draw.either("Mul", one, half));
      break;
  }
}

void gelu_of_tanh(Draw& draw, const std::string&) {
  enum : int64_t { kSmall = 1, kPower, kRoot, kOne, kHalf };
  const std::string x = draw.any();
  const int64_t missed = draw.missed(kHalf);
  const std::string square = draw.emit1("Mul", {x, x});
  const std::string cube = missed == kPower ? square
                           : draw.one_in(2) ? draw.emit1("Pow", {x, draw.scalar(3)})
                                            : draw.emit1("Mul", {square, x});
  const std::string small =
      draw.either("Mul", cube, draw.scalar(missed == kSmall ? 0.05 : 0.044715));
  const std::string sum = draw.either("Add", x, small);
  const double root = missed == kRoot ? 0.7 : std::sqrt(2 / M_PI);
  const std::string t = draw.emit1("Tanh", {draw.either("Mul", sum, draw.scalar(root))});
  const std::string one = draw.either("Add", t, draw.scalar(missed == kOne ? 1.1 : 1));
  const double half = missed == kHalf ? 0.4 : 0.5;
  draw.either("Mul", draw.either("Mul", x, draw.scalar(half)), one);
}

void layer_norm_in_pieces(Draw& draw, const std::string&) {
  enum : int64_t { kMean = 1, kVariance, kBoth, kQuotient, kScale, kBias };
  const std::string x = draw.of_rank(2, 4);
  const int64_t missed = draw.missed(kBias);
  const int64_t last = draw.one_in(2) ? -1 : draw.rank(x) - 1, other = draw.below(draw.rank(x) - 1);
  const auto axis = [&](int64_t part) { return missed == part || missed == kBoth ? other : last; };
  const std::string away = draw.emit1("Sub", {x, mean(draw, x, axis(kMean))});
  const std::string square =
      draw.one_in(2) ? draw.emit1("Pow", {away, draw.scalar(2)}) : draw.emit1("Mul", {away, away});
  const std::string variance = mean(draw, square, axis(kVariance));
  const std::string sum = draw.either("Add", variance, draw.scalar(draw.one_in(2) ? 1e-3 : 0.1));
  const std::string root = draw.emit1("Sqrt", {sum});
  const std::string unit = draw.emit1(missed == kQuotient ? "Mul" : "Div", {away, root});
  const Axes whole{draw.axes(x).back()};
  const Axes rows{draw.axes(x)[static_cast<size_t>(draw.rank(x) - 2)], 1};
  const std::string scaled =
      draw.either("Mul", unit, draw.weight(missed == kScale ? rows : whole, 1));
  if (!draw.one_in(3)) {
    draw.either("Add", scaled, draw.weight(missed == kBias ? rows : whole, 1));
  }
}

void rms_norm_in_pieces(Draw& draw, const std::string&) {
  enum : int64_t { kMean = 1, kSquare, kScale, kFactor };
  const std::string x = draw.of_rank(2, 4);
  const int64_t missed = draw.missed(kFactor);
  const std::string square = missed == kSquare ? draw.emit1("Abs", {x})
                             : draw.one_in(2)  ? draw.emit1("Pow", {x, draw.scalar(2)})
                                               : draw.emit1("Mul", {x, x});
  const int64_t axis = missed == kMean ? draw.below(draw.rank(x) - 1) : -1;
  const std::string sum = draw.either("Add", mean(draw, square, axis), draw.scalar(1e-3));
  const std::string root = draw.emit1("Sqrt", {sum});
  const std::string of = missed == kFactor ? draw.emit1("Tanh", {x}) : x;
  const std::string unit = draw.one_in(2)
                               ? draw.emit1("Div", {of, root})
                               : draw.either("Mul", of, draw.emit1("Reciprocal", {root}));
  const Axes rows{draw.axes(x)[static_cast<size_t>(draw.rank(x) - 2)], 1};
  draw.either("Mul", unit, draw.weight(missed == kScale ? rows : Axes{draw.axes(x).back()}, 1));
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
  const std::string sum = draw.either("Add", product, draw.weight(bias, 1));
  if (draw.one_in(2)) draw.emit1(draw.one_of(Names{"Relu", "Tanh", "Gelu", "Sigmoid"}), {sum});
}

void likelihood(Draw& draw, const std::string&) {
  const bool missed = draw.missed(1) != 0;
  std::string x = draw.of_rank(2, 3);
  const auto last = static_cast<size_t>(draw.rank(x) - 1);
  const int64_t classes = draw.axes(x)[last];
  const int64_t axis = missed           ? draw.below(draw.rank(x) - 1)
                       : draw.one_in(2) ? draw.rank(x) - 1
                                        : -1;
  std::string logs = draw.emit1("LogSoftmax", {x}, {{"axis", axis}});
  if (draw.one_in(5)) draw.emit1("Tanh", {logs});
  if (last == 2 && draw.one_in(2)) {  // as a loss over [N, classes, d]
    logs = draw.emit1("Transpose", {logs}, {{"perm", Axes{0, 2, 1}}});
  } else if (last == 2) {
    logs = draw.emit1("Reshape", {logs, draw.ints({-1, classes})});
  }
  Axes rows = draw.axes(logs);
  rows.erase(rows.begin() + 1);
  std::vector<double> labels;
  for (int64_t i = 0; i < Shape(rows).numel(); ++i) {
    labels.push_back(static_cast<double>(draw.below(classes)));
  }
  Names inputs{logs, draw.constant({DType::kInt64, Shape(rows)}, labels)};
  if (draw.one_in(4)) inputs.push_back(draw.class_weights(classes));
  draw.emit1("NegativeLogLikelihoodLoss", inputs,
             {{"reduction", draw.one_of(Names{"mean", "sum"})}});
}

void pool_and_relu(Draw& draw, const std::string&) {
  const std::string x = draw.one_in(2) ? draw.of_rank(4, 4)
                                       : draw.of_shape({draw.graph.batch, draw.between(1, 3),
                                                        draw.between(3, 6), draw.between(3, 6)});
  const Axes& shape = draw.axes(x);
  const Axes kernel{std::min<int64_t>(2, shape[2]), std::min<int64_t>(2, shape[3])};
  Attributes attributes{{"kernel_shape", kernel}, {"strides", Axes{draw.between(1, 2), 1}}};
  if (draw.graph.opset >= 10 && shape[2] > 2 && shape[3] > 2 && draw.one_in(2)) {
    attributes.set("dilations", draw.one_of(std::vector<Axes>{{1, 2}, {2, 1}, {2, 2}}));
  }
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

}  // namespace

std::vector<Recipe> idiom_recipes() {
  return {{"gelu_of_erf", 6, gelu_of_erf},
          {"gelu_of_tanh", 6, gelu_of_tanh},
          {"layer_norm_in_pieces", 8, layer_norm_in_pieces},
          {"rms_norm_in_pieces", 6, rms_norm_in_pieces},
          {"linear", 8, linear},
          {"likelihood", 6, likelihood},
          {"pool_and_relu", 4, pool_and_relu},
          {"chain", 6, chain}};
}

}  // namespace ofsdp::graphs

// The recipes of blocks: attention, rotary embeddings, tied tables, residuals and losses as in real
// models. As in idioms.cpp, a near miss differs in exactly one part.
#include <cmath>

#include "tests/graphs/draw.h"

namespace ofsdp::graphs {
namespace {

// --- attention ---

std::string heads_of(Draw& draw, const std::string& x, int64_t heads, const Axes& perm) {
  const Axes& shape = draw.axes(x);
  const std::string apart =
      draw.emit1("Reshape", {x, draw.ints({shape[0], shape[1], heads, shape[2] / heads})});
  return draw.emit1("Transpose", {apart}, {{"perm", perm}});
}

// The three parts of one product, as in GPT-2.
Names packed_projection(Draw& draw, const std::string& x, int64_t width) {
  std::string all = draw.emit1("MatMul", {x, draw.weight({draw.axes(x).back(), 3 * width})});
  if (draw.one_in(2)) all = draw.either("Add", all, draw.weight({3 * width}, 1));
  return draw.emit("Split", {all, draw.ints({width, width, width})}, {{"axis", int64_t{2}}}, 3);
}

// A mask: causal or not, with separate numbers (ALiBi) or without, for all heads or for each. Some
// hide the last keys of a sample, as padding does.
std::string mask_of(Draw& draw, int64_t heads, int64_t tokens) {
  const bool causal = draw.one_in(2), biased = !causal || draw.one_in(2);
  const std::vector<Axes> shapes = {{tokens, tokens},
                                    {tokens, tokens},
                                    {1, 1, tokens, tokens},
                                    {heads, tokens, tokens},
                                    {draw.graph.batch, 1, 1, tokens}};
  const Axes shape = draw.one_of(shapes);
  const bool padding = shape.size() == 4 && shape[2] == 1;
  const int64_t kept = draw.between(1, tokens);
  std::vector<double> mask;
  for (int64_t i = 0; i < Shape(shape).numel(); ++i) {
    const int64_t key = i % tokens, query = i / tokens % tokens;
    const bool hidden = padding ? key >= kept : causal && key > query;
    mask.push_back(hidden ? kHidden : biased ? draw.real(-2, 2) : 0);
  }
  return draw.constant({DType::kFloat32, Shape(shape)}, mask);
}

// Q K^T by a scale, in three places.
std::string scores_of(Draw& draw, const std::string& q, const std::string& k, double scale) {
  switch (draw.below(3)) {
    case 0:
      return draw.emit1("Div", {draw.emit1("MatMul", {q, k}), draw.scalar(scale)});
    case 1:
      return draw.either("Mul", draw.emit1("MatMul", {q, k}), draw.scalar(1 / scale));
    default:
      return draw.emit1("MatMul", {draw.emit1("Div", {q, draw.scalar(scale)}), k});
  }
}

struct Heads {
  std::string q, k, v;  // k is transposed
};

Heads heads_from(Draw& draw, const std::string& x, int64_t heads, int64_t width) {
  const auto projected = [&] {
    const std::string product = draw.emit1("MatMul", {x, draw.weight({draw.axes(x)[2], width})});
    return draw.one_in(2) ? draw.either("Add", product, draw.weight({width}, 1)) : product;
  };
  const Names packed = draw.one_in(3) ? packed_projection(draw, x, width) : Names{};
  size_t parts = 0;
  const auto operand = [&] { return packed.empty() ? projected() : packed[parts++]; };
  Heads made;
  made.q = heads_of(draw, operand(), heads, {0, 2, 1, 3});
  made.v = heads_of(draw, operand(), heads, {0, 2, 1, 3});
  if (draw.one_in(2)) {
    made.k = heads_of(draw, operand(), heads, {0, 2, 3, 1});
  } else {
    made.k = draw.emit1("Transpose", {heads_of(draw, operand(), heads, {0, 2, 1, 3})},
                        {{"perm", Axes{0, 1, 3, 2}}});
  }
  return made;
}

void attention_in_pieces(Draw& draw, const std::string&) {
  enum : int64_t { kScale = 1, kAxis, kReaders };
  const int64_t heads = draw.between(1, 2), size = draw.between(1, 3), width = heads * size;
  const int64_t tokens = draw.between(2, 4), missed = draw.missed(kReaders);
  const std::string x = draw.of_shape({draw.graph.batch, tokens, draw.between(2, 5)});
  const Heads h = heads_from(draw, x, heads, width);
  const double scale = missed == kScale ? 1.7 : std::sqrt(static_cast<double>(size));
  std::string scores = scores_of(draw, h.q, h.k, scale);
  if (!draw.one_in(3)) scores = draw.either("Add", scores, mask_of(draw, heads, tokens));
  const int64_t axis = missed == kAxis ? 2 : draw.one_in(2) ? -1 : 3;
  const std::string shares = draw.emit1("Softmax", {scores}, {{"axis", axis}});
  const std::string context = draw.emit1("MatMul", {shares, h.v});
  if (missed == kReaders) draw.emit1("ReduceSumSquare", {shares});
  if (draw.one_in(4)) return;
  const std::string back = draw.emit1("Transpose", {context}, {{"perm", Axes{0, 2, 1, 3}}});
  draw.emit1("Reshape", {back, draw.ints({draw.graph.batch, tokens, width})});
}

// --- rotary embeddings ---

struct Rotary {
  enum : int64_t { kNoNeg = 1, kOtherNeg, kUneven, kHalves, kSine };  // near misses
  int64_t tokens, half, missed;
  bool steps_first;  // [b, tokens, heads, size]
};

// The angles of each token, one for each of `width` elements; in a near miss the halves differ.
std::vector<double> angles_of(const Rotary& r, const Axes& shape) {
  std::vector<double> angles;
  for (int64_t i = 0; i < Shape(shape).numel(); ++i) {
    const int64_t element = i % shape.back(), row = i / shape.back();
    const int64_t place = r.missed == Rotary::kHalves ? element : element % r.half;
    const double at =
        static_cast<double>(row % r.tokens) + 0.3 * static_cast<double>(row / r.tokens);
    angles.push_back((at + 0.5) * std::pow(10.0, -static_cast<double>(place)));
  }
  return angles;
}

// Cosines and sines: constants, or computed from angles as in Llama.
std::pair<std::string, std::string> tables_of(Draw& draw, const Rotary& r, int64_t width) {
  const int64_t samples = draw.one_in(3) ? draw.graph.batch : 1;
  const bool short_form = samples == 1 && draw.one_in(2);
  Axes shape = short_form ? Axes{r.tokens} : Axes{samples, 1, r.tokens};
  if (r.steps_first) shape = short_form ? Axes{r.tokens, 1} : Axes{samples, r.tokens, 1};
  const bool computed = draw.one_in(3), joined = computed && width == 2 * r.half;
  shape.push_back(joined ? r.half : width);
  std::vector<double> angles = angles_of(r, shape);
  const TensorDesc desc{DType::kFloat32, Shape(shape)};
  if (computed) {
    std::string f = draw.constant(desc, angles);
    const std::string other = r.missed == Rotary::kHalves ? draw.emit1("Neg", {f}) : f;
    if (joined) f = draw.emit1("Concat", {f, other}, {{"axis", int64_t{-1}}});
    return {draw.emit1("Cos", {f}), draw.emit1("Sin", {f})};
  }
  std::vector<double> cosines, sines;
  for (const double angle : angles) {
    cosines.push_back(std::cos(angle));
    sines.push_back(std::sin(angle));
  }
  return {draw.constant(desc, cosines), draw.constant(desc, sines)};
}

// The last axis's elements before `at` and from it on.
Names cut(Draw& draw, const std::string& x, int64_t at) {
  const int64_t size = draw.axes(x).back(), last = draw.rank(x) - 1;
  if (draw.one_in(2)) {
    return draw.emit("Split", {x, draw.ints({at, size - at})}, {{"axis", last}}, 2);
  }
  return {draw.emit1("Slice", {x, draw.ints({0}), draw.ints({at}), draw.ints({last})}),
          draw.emit1("Slice", {x, draw.ints({at}), draw.ints({size}), draw.ints({last})})};
}

// x cos + Concat(-high, low) sin
std::string rotated_whole(Draw& draw, const std::string& x, const Rotary& r) {
  const auto [cosines, sines] = tables_of(draw, r, 2 * r.half);
  const Names parts = cut(draw, x, r.missed == Rotary::kUneven ? 1 : r.half);
  std::string low = parts[0], high = parts[1];
  if (r.missed == Rotary::kOtherNeg) low = draw.emit1("Neg", {low});
  const bool signs = r.missed != Rotary::kNoNeg && r.missed != Rotary::kOtherNeg;
  if (signs) high = draw.emit1("Neg", {high});
  const std::string turned = draw.emit1("Concat", {high, low}, {{"axis", int64_t{3}}});
  const std::string a = draw.either("Mul", x, cosines);
  const std::string sine = r.missed == Rotary::kSine ? cosines : sines;
  return draw.either("Add", a, draw.either("Mul", turned, sine));
}

// Concat(low cos - high sin, high cos + low sin)
std::string rotated_halves(Draw& draw, const std::string& x, const Rotary& r) {
  const auto [cosines, sines] = tables_of(draw, r, r.half);
  const Names parts = cut(draw, x, r.half);
  const std::string other = r.missed == Rotary::kHalves ? draw.emit1("Neg", {sines}) : sines;
  const std::string a = draw.either("Mul", parts[0], cosines),
                    b = draw.either("Mul", parts[1], sines),
                    c = draw.either("Mul", parts[1], cosines),
                    d = draw.either("Mul", parts[0], r.missed == Rotary::kSine ? cosines : other);
  const std::string low =
      r.missed == Rotary::kOtherNeg ? draw.emit1("Sub", {b, a}) : draw.emit1("Sub", {a, b});
  const std::string high = draw.either(r.missed == Rotary::kNoNeg ? "Sub" : "Add", c, d);
  return draw.emit1("Concat", {low, high}, {{"axis", int64_t{-1}}});
}

void rotary_in_pieces(Draw& draw, const std::string&) {
  const Rotary r{draw.between(2, 4), draw.between(1, 3), draw.missed(Rotary::kSine),
                 draw.one_in(3)};
  const int64_t heads = draw.between(1, 2), more = draw.one_in(3) ? draw.between(1, 2) : 0;
  const int64_t width = 2 * r.half + more;
  const std::string x =
      draw.of_shape(r.steps_first ? Axes{draw.graph.batch, r.tokens, heads, width}
                                  : Axes{draw.graph.batch, heads, r.tokens, width});
  const Names parts = more > 0 ? cut(draw, x, 2 * r.half) : Names{x};
  const std::string made =
      draw.one_in(2) ? rotated_whole(draw, parts[0], r) : rotated_halves(draw, parts[0], r);
  if (more > 0) draw.emit1("Concat", {made, parts[1]}, {{"axis", int64_t{3}}});
}

// --- tables shared by a lookup and a product ---

std::string looked_up(Draw& draw, const std::string& table, int64_t axis) {
  const Axes shape =
      draw.one_in(2) ? Axes{draw.graph.batch, draw.between(1, 4)} : Axes{draw.between(1, 5)};
  std::vector<double> index;
  for (int64_t i = 0; i < Shape(shape).numel(); ++i) {
    index.push_back(static_cast<double>(draw.below(draw.axes(table)[static_cast<size_t>(axis)])));
  }
  const std::string ids = draw.constant({DType::kInt64, Shape(shape)}, index);
  return draw.emit1("Gather", {table, ids}, {{"axis", axis}});
}

// The product of rows [.., width] with the transposed table, or with the table.
std::string projected(Draw& draw, const std::string& x, const std::string& table, bool transposed) {
  if (transposed && draw.one_in(2)) {
    const std::string rows = draw.emit1("Reshape", {x, draw.ints({-1, draw.axes(table)[1]})});
    Names inputs{rows, table};
    if (draw.one_in(2)) inputs.push_back(draw.weight({draw.axes(table)[0]}, 1));
    return draw.emit1("Gemm", inputs, {{"transB", int64_t{1}}});
  }
  if (!transposed) return draw.emit1("MatMul", {x, table});
  const std::string columns = draw.emit1("Transpose", {table}, {{"perm", Axes{1, 0}}});
  return draw.emit1("MatMul", {x, columns});
}

void tied_table(Draw& draw, const std::string&) {
  enum : int64_t { kOrder = 1, kAxis, kTwice, kElements };
  const int64_t missed = draw.missed(kElements), width = draw.between(1, 6);
  const std::string table = draw.weight({draw.between(2, 9), width}, 0.7);
  const auto other = [&] { return draw.of_shape({draw.graph.batch, draw.between(1, 3), width}); };
  if (missed == kOrder) projected(draw, other(), table, true);
  std::string x = looked_up(draw, table, missed == kAxis ? 1 : 0);
  if (missed == kTwice) draw.emit1("Tanh", {looked_up(draw, table, 0)});
  if (missed == kElements) draw.emit1("ReduceMean", {draw.emit1("Mul", {table, table})});
  if (missed == kAxis) return void(projected(draw, other(), table, true));
  if (draw.one_in(2)) x = draw.emit1("Tanh", {draw.either("Mul", x, draw.weight({width}, 1))});
  if (draw.one_in(2)) return void(projected(draw, x, table, true));
  const std::string mixed = draw.emit1("MatMul", {x, draw.weight({width, draw.axes(table)[0]})});
  projected(draw, mixed, table, false);
}

// --- images ---

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
  if (draw.one_in(2)) {
    y = draw.emit1(draw.one_in(2) ? "AveragePool" : "MaxPool", {y}, {{"kernel_shape", Axes{2, 1}}});
  }
  if (draw.one_in(2)) y = draw.emit1("Transpose", {y}, {{"perm", Axes{0, 2, 3, 1}}});
  if (draw.one_in(3)) draw.emit1("GlobalAveragePool", {y});
}

// --- residuals ---

void residual(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 3);
  const int64_t width = draw.axes(x).back();
  std::string y = x;
  if (draw.has("LayerNormalization")) {
    y = draw.emit1("LayerNormalization", {x, draw.weight({width}, 1), draw.weight({width}, 1)},
                   {{"epsilon", 1e-2f}});
  }
  y = draw.emit1("MatMul", {y, draw.weight({width, width})});
  draw.either("Add", x, draw.one_in(2) ? draw.emit1("Tanh", {y}) : y);
}

// A normalization of a sum, where something later reads each part too: the gradient of the sum has
// several readers.
void post_norm(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 3);
  const int64_t width = draw.axes(x).back();
  const std::string y = draw.emit1("MatMul", {x, draw.weight({width, width})});
  const std::string sum = draw.either("Add", y, x);
  Names inputs{sum, draw.weight({width}, 1)};
  const bool centered = draw.has("LayerNormalization") && draw.one_in(2);
  if (centered) inputs.push_back(draw.weight({width}, 1));
  const std::string unit = draw.emit1(centered ? "LayerNormalization" : "RMSNormalization", inputs,
                                      {{"epsilon", 1e-2f}});
  draw.either(draw.one_in(2) ? "Add" : "Mul", unit, draw.one_of(Names{x, y, sum}));
}

// --- losses ---

// Enough rows and classes for a step that leaves out rows without a label.
void wide_loss(Draw& draw, const std::string&) {
  constexpr int64_t kRows = 128, kClasses = 1024;
  const std::string x = draw.of_shape({kRows, draw.between(1, 3)});
  const std::string w = draw.weight({draw.axes(x)[1], kClasses}, 1);
  draw.most_elements = kRows * kClasses;
  std::string scores = draw.emit1("MatMul", {x, w});
  draw.hide(scores);
  if (draw.one_in(2)) {
    scores = draw.either("Add", scores, draw.weight({kClasses}, 1));
    draw.hide(scores);
  }
  std::vector<double> labels;
  for (int64_t i = 0; i < kRows; ++i) {
    labels.push_back(static_cast<double>(draw.one_in(3) ? -100 : draw.below(kClasses)));
  }
  draw.emit1("SoftmaxCrossEntropyLoss", {scores, draw.constant({DType::kInt64, {kRows}}, labels)},
             {{"reduction", std::string("mean")}, {"ignore_index", int64_t{-100}}});
}

}  // namespace

std::vector<Recipe> block_recipes() {
  return {{"attention_in_pieces", 10, attention_in_pieces},
          {"rotary_in_pieces", 12, rotary_in_pieces},
          {"tied_table", 5, tied_table},
          {"image_block", 6, image_block},
          {"residual", 6, residual},
          {"post_norm", 5, post_norm},
          {"wide_loss", 1, wide_loss}};
}

}  // namespace ofsdp::graphs

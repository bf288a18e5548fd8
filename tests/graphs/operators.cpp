// The recipes of operators: one for each row of tests/ops/samples, with inputs that become values
// in the graph, and some with other shapes.
#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/core/op_def.h"
#include "tests/graphs/draw.h"
#include "tests/support/op_values.h"
#include "tests/support/samples.h"

namespace ofsdp::graphs {
namespace {

// --- rows of the sample cases: every attribute ---

bool has_gradient(const OpDef& op) { return op.grad != nullptr || is_composite(op); }

// Operators that are no part of a trained graph, or that have a separate recipe.
bool left_out(const OpDef& op) {
  static const std::vector<std::string> kOperators = {
      "Constant",  "Dropout",     "RandomNormal",     "RandomUniform",
      "Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike",
      "If",        "Loop"};
  return std::ranges::count(kOperators, op.name) > 0;
}

bool all_float32(const SampleCase& sample) {
  return std::ranges::all_of(sample.inputs, [](const TensorDesc& d) {
    return !d.present() || !is_floating(d.dtype) || d.dtype == DType::kFloat32;
  });
}

bool usable(const OpDef& op, const SampleCase& sample) {
  if (!sample.check_grad || sample.num_outputs > 3 || !all_float32(sample)) return false;
  if (left_out(op)) return false;
  for (const TensorDesc& desc : sample.inputs) {
    if (desc.present() && desc.numel() > kMaxElements) return false;
  }
  for (const auto& [name, value] : sample.attributes.all()) {
    if (name.starts_with("ofsdp_")) return false;
  }
  return !sample.inputs.empty() && sample.inputs[0].present();
}

void draw_sample(Draw& draw, const std::string& name) {
  const OpDef& op = draw.registry.get(name);
  std::vector<SampleCase> samples = testing::samples_of(op);
  std::erase_if(samples, [&](const SampleCase& s) { return !usable(op, s); });
  if (samples.empty()) throw Refused(name + ": no samples");
  const SampleCase& sample = draw.one_of(samples);
  const testing::CaseValues values = testing::make_values(sample, draw.random());
  Names inputs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const TensorDesc& desc = sample.inputs[i];
    const bool known = values.constants.size() > i && values.constants[i] != nullptr;
    if (!desc.present()) {
      inputs.emplace_back();
    } else if (known || desc.dtype != DType::kFloat32) {
      inputs.push_back(draw.constant(desc, values.inputs[i].values));
    } else if (sample.fill == nullptr && !draw.one_in(3)) {
      inputs.push_back(draw.of_shape(desc.shape.axes()));
    } else {
      inputs.push_back(draw.weight_of(desc, values.inputs[i].values));
    }
  }
  draw.emit(name, inputs, sample.attributes, sample.num_outputs);
}

// --- elementwise ---

void unary(Draw& draw, const std::string& name) {
  std::string x = draw.any();
  static const Names kPositive = {"Log", "Sqrt", "Reciprocal"};
  static const Names kBounded = {"Tan", "Asin", "Acos", "Atanh", "Sinh", "Cosh", "Exp"};
  if (std::ranges::count(kPositive, name) > 0) x = draw.positive(0.4);
  if (std::ranges::count(kBounded, name) > 0) x = draw.bounded(0.95);
  if (name == "Acosh") x = draw.positive(1.3);
  Attributes attributes;
  if (name == "Elu" || name == "Celu")
    attributes.set("alpha", static_cast<float>(draw.real(0.2, 2)));
  if (name == "LeakyRelu") attributes.set("alpha", static_cast<float>(draw.real(-0.5, 0.9)));
  if (name == "ThresholdedRelu") attributes.set("alpha", static_cast<float>(draw.real(0.2, 1)));
  if (name == "HardSigmoid") {
    attributes.set("alpha", static_cast<float>(draw.real(0.1, 0.6)));
    attributes.set("beta", static_cast<float>(draw.real(0.2, 0.7)));
  }
  if (name == "Shrink") {
    attributes.set("lambd", static_cast<float>(draw.real(0.1, 0.6)));
    attributes.set("bias", static_cast<float>(draw.real(-0.3, 0.3)));
  }
  if (name == "Gelu") attributes.set("approximate", std::string(draw.one_in(2) ? "tanh" : "none"));
  draw.emit1(name, {x}, attributes);
}

void binary(Draw& draw, const std::string& name) {
  std::string x = draw.any();
  std::string y = draw.one_in(3) ? draw.of_shape(draw.axes(x)) : draw.fitting(draw.axes(x));
  if (name == "Div") y = draw.emit1("Add", {draw.emit1("Abs", {y}), draw.scalar(0.5)});
  if (name == "Pow") {
    x = draw.positive(0.3);
    const bool number = draw.one_in(2);
    y = number ? draw.scalar(draw.one_of(std::vector<double>{1, 2, 3, 0.5, -1, 1.5, -0.5}))
               : draw.fitting(draw.axes(x));
  }
  if (name == "PRelu") return void(draw.emit1(name, {x, y}));
  if (draw.one_in(3) && name != "Pow" && name != "Div") std::swap(x, y);
  draw.emit1(name, {x, y});
}

void variadic(Draw& draw, const std::string& name) {
  const std::string x = draw.any();
  Names inputs{x};
  const int64_t more = draw.between(0, 3);
  for (int64_t i = 0; i < more; ++i) {
    inputs.push_back(draw.one_in(3) ? x : draw.fitting(draw.axes(x)));
  }
  draw.emit1(name, inputs);
}

void clip(Draw& draw, const std::string&) {
  Names inputs{draw.any(), draw.one_in(4) ? "" : draw.scalar(draw.real(-1, -0.2))};
  if (!draw.one_in(3)) inputs.push_back(draw.scalar(draw.real(0.2, 1)));
  if (inputs.back().empty()) inputs.pop_back();
  draw.emit1("Clip", inputs);
}

void where(Draw& draw, const std::string&) {
  const std::string x = draw.any();
  const std::string zero = draw.scalar(draw.real(-0.5, 0.5));
  const std::string mask =
      draw.emit1(draw.one_in(2) ? "Greater" : "Less", {draw.one_in(2) ? x : draw.any(), zero});
  if (draw.one_in(2)) {
    draw.emit1("Where", {mask, x, draw.fitting(draw.axes(x))});
  } else {
    draw.emit1("Where", {mask, draw.fitting(draw.axes(mask)), draw.fitting(draw.axes(mask))});
  }
}

// --- products ---

void mat_mul(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 4);
  const int64_t k = draw.axes(x).back();
  const int64_t n = draw.between(1, 9);
  if (draw.one_in(5)) return void(draw.emit1("MatMul", {x, draw.weight({k})}));
  if (draw.one_in(4) && draw.rank(x) >= 2) {
    const int64_t rows = draw.axes(x)[static_cast<size_t>(draw.rank(x) - 2)];
    return void(draw.emit1("MatMul", {draw.weight({n, rows}), x}));
  }
  if (draw.one_in(4) && draw.rank(x) >= 3) {
    Axes shape(draw.axes(x).begin(), draw.axes(x).end() - 2);
    shape.insert(shape.end(), {k, n});
    if (draw.one_in(2)) shape[0] = 1;
    return void(draw.emit1("MatMul", {x, draw.weight(shape, 0.5)}));
  }
  draw.emit1("MatMul", {x, draw.weight({k, n})});
}

void gemm(Draw& draw, const std::string&) {
  std::string x = draw.of_rank(2, 2);
  const bool swapped = draw.one_in(4), transposed = draw.one_in(2);
  const int64_t m = draw.axes(x)[swapped ? 1 : 0], k = draw.axes(x)[swapped ? 0 : 1];
  const int64_t n = draw.between(1, 9);
  Names inputs{x, draw.weight(transposed ? Axes{n, k} : Axes{k, n})};
  const int64_t c = draw.between(0, 5);
  if (c == 1) inputs.push_back(draw.weight({n}));
  if (c == 2) inputs.push_back(draw.weight({1, n}));
  if (c == 3) inputs.push_back(draw.weight({m, 1}));
  if (c == 4) inputs.push_back(draw.weight({m, n}));
  if (c == 5) inputs.push_back(draw.weight({}));
  Attributes attributes{{"transA", int64_t{swapped}}, {"transB", int64_t{transposed}}};
  if (draw.one_in(3)) attributes.set("alpha", static_cast<float>(draw.real(-1.5, 1.5)));
  if (draw.one_in(3)) attributes.set("beta", static_cast<float>(draw.real(-1.5, 1.5)));
  draw.emit1("Gemm", inputs, attributes);
}

// --- shapes ---

void transpose(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 5);
  Axes perm;
  for (int i = 0; i < draw.rank(x); ++i) perm.push_back(i);
  std::shuffle(perm.begin(), perm.end(), draw.random);
  draw.emit1("Transpose", {x}, {{"perm", perm}});
}

void reshape(Draw& draw, const std::string&) {
  const std::string x = draw.any();
  int64_t left = draw.numel(x);
  Axes shape;
  while (left > 1 && shape.size() < 4) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= left; ++d) {
      if (left % d == 0) divisors.push_back(d);
    }
    shape.push_back(draw.one_of(divisors));
    left /= shape.back();
  }
  if (left > 1 || shape.empty()) shape.push_back(left);
  if (draw.one_in(3) && draw.numel(x) > 0)
    shape[static_cast<size_t>(draw.below(static_cast<int64_t>(shape.size())))] = -1;
  if (!draw.one_in(4) || draw.numel(x) == 0)
    return void(draw.emit1("Reshape", {x, draw.ints(shape)}));
  // The first axis, computed as exporters do.
  const Axes& own = draw.axes(x);
  if (own.empty() || own[0] == 0) throw Refused("nothing to take");
  const std::string sizes = draw.emit1("Shape", {x});
  const std::string first = draw.emit1("Gather", {sizes, draw.ints({0})}, {{"axis", int64_t{0}}});
  const std::string all = draw.emit1("Concat", {first, draw.ints({-1})}, {{"axis", int64_t{0}}});
  draw.emit1("Reshape", {x, all});
}

void dropout(Draw& draw, const std::string&) {
  const std::string on = draw.constant({DType::kBool, {}}, {draw.one_in(4) ? 0.0 : 1.0});
  draw.emit1("Dropout", {draw.any(), draw.scalar(draw.real(0.1, 0.6)), on});
}

void flatten(Draw& draw, const std::string&) {
  const std::string x = draw.any();
  draw.emit1("Flatten", {x}, {{"axis", draw.between(0, draw.rank(x))}});
}

void unsqueeze(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(0, 4);
  const int64_t axis = draw.between(0, draw.rank(x));
  const std::string up = draw.emit1("Unsqueeze", {x, draw.ints({axis})});
  if (draw.one_in(3)) draw.emit1("Squeeze", {draw.emit1("Tanh", {up}), draw.ints({axis})});
}

void expand(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 3);
  Axes shape = draw.axes(x);
  for (int64_t& axis : shape) {
    if (axis == 1) axis = draw.between(1, 4);
  }
  if (draw.one_in(2)) shape.insert(shape.begin(), draw.between(1, 3));
  draw.emit1("Expand", {x, draw.ints(shape)});
}

void concat(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 4);
  const int64_t axis = draw.below(draw.rank(x));
  Names inputs{x};
  const int64_t more = draw.between(0, 2);
  for (int64_t i = 0; i < more; ++i) {
    Axes shape = draw.axes(x);
    shape[static_cast<size_t>(axis)] = draw.between(0, 3);
    inputs.push_back(draw.one_in(3) ? x : draw.weight(shape, 1));
  }
  std::shuffle(inputs.begin(), inputs.end(), draw.random);
  draw.emit1("Concat", inputs, {{"axis", draw.one_in(2) ? axis : axis - draw.rank(x)}});
}

void split(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 4);
  const int64_t axis = draw.below(draw.rank(x)), size = draw.axes(x)[static_cast<size_t>(axis)];
  const int64_t first = draw.between(0, size);
  const Names parts =
      draw.emit("Split", {x, draw.ints({first, size - first})}, {{"axis", axis}}, 2);
  if (draw.one_in(2)) draw.emit1("Tanh", {parts[static_cast<size_t>(draw.below(2))]});
}

void slice(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 5);
  const int64_t axis = draw.below(draw.rank(x)), size = draw.axes(x)[static_cast<size_t>(axis)];
  const int64_t from = draw.below(size + 1), to = draw.between(from, size + 1);
  if (draw.one_in(3)) {
    return void(draw.emit1("Slice", {x, draw.ints({size}), draw.ints({-size - 1}),
                                     draw.ints({axis}), draw.ints({draw.one_in(2) ? -1 : -2})}));
  }
  draw.emit1("Slice", {x, draw.ints({from}), draw.ints({to}), draw.ints({axis}),
                       draw.ints({draw.between(1, 2)})});
}

void gather(Draw& draw, const std::string&) {
  const std::string x =
      draw.one_in(2) ? draw.of_rank(1, 4) : draw.weight({draw.between(1, 9), 4}, 1);
  const int64_t axis = draw.below(draw.rank(x)), size = draw.axes(x)[static_cast<size_t>(axis)];
  Axes shape;
  const int64_t rank = draw.between(0, 2);
  for (int64_t i = 0; i < rank; ++i) shape.push_back(draw.between(1, 4));
  std::vector<double> index;
  const int64_t low = draw.graph.opset < 11 ? 0 : -size;
  for (int64_t i = 0; i < Shape(shape).numel(); ++i) {
    index.push_back(static_cast<double>(draw.between(low, size - 1)));
  }
  const DType dtype = draw.one_in(2) ? DType::kInt64 : DType::kInt32;
  draw.emit1("Gather", {x, draw.constant({dtype, Shape(shape)}, index)}, {{"axis", axis}});
}

void pad(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 4);
  const std::string mode = draw.one_of(Names{"constant", "reflect", "edge", "wrap"});
  Axes pads;
  for (int i = 0; i < 2 * draw.rank(x); ++i) {
    const int64_t size = draw.axes(x)[static_cast<size_t>(i % draw.rank(x))];
    const int64_t most = mode == "reflect" ? size - 1 : mode == "wrap" ? size : 3;
    pads.push_back(draw.one_in(2) ? 0 : draw.between(0, std::min<int64_t>(most, 3)));
  }
  Names inputs{x, draw.ints(pads)};
  if (mode == "constant" && draw.one_in(2)) inputs.push_back(draw.scalar(draw.real(-1, 1)));
  draw.emit1("Pad", inputs, {{"mode", mode}});
}

// --- sums ---

void reduce(Draw& draw, const std::string& name) {
  const std::string x = name == "ReduceLogSum" ? draw.positive(0.4) : draw.any();
  Names inputs{x};
  Axes axes;
  for (int i = 0; i < draw.rank(x); ++i) {
    if (draw.one_in(2)) axes.push_back(draw.one_in(3) ? i - draw.rank(x) : i);
  }
  if (!axes.empty()) inputs.push_back(draw.ints(axes));
  draw.emit1(name, inputs, {{"keepdims", int64_t{draw.one_in(2)}}});
}

void cum_sum(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 4);
  draw.emit1(
      "CumSum",
      {x, draw.constant({DType::kInt64, {}}, {static_cast<double>(draw.below(draw.rank(x)))})},
      {{"exclusive", int64_t{draw.one_in(2)}}, {"reverse", int64_t{draw.one_in(2)}}});
  // The number of rounds must be known.
  DrawnNode& sum = draw.graph.nodes.back();
  if (draw.graph.fixed_batch && draw.numel(x) > 0 && sum.rounds == 1 && draw.one_in(2)) {
    sum.around = Around::kScan;
  }
}

// --- normalizations ---

void softmax(Draw& draw, const std::string& name) {
  const std::string x = draw.of_rank(1, 4);
  const int64_t axis = draw.one_in(2) ? draw.rank(x) - 1 : draw.below(draw.rank(x));
  draw.emit1(name, {x}, {{"axis", draw.one_in(2) ? axis : axis - draw.rank(x)}});
}

void layer_norm(Draw& draw, const std::string& name) {
  const std::string x = draw.of_rank(2, 4);
  const int64_t axis = draw.one_in(2) ? draw.rank(x) - 1 : draw.between(1, draw.rank(x) - 1);
  const Axes whole(draw.axes(x).begin() + axis, draw.axes(x).end());
  Axes rows = draw.axes(x);  // [.., n, 1]: a scale for each row
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + 2 != rows.size()) rows[i] = 1;
  }
  const auto operand = [&] {
    const bool broadcast = draw.one_in(4);
    return draw.weight(!broadcast ? whole : draw.one_in(2) ? rows : Axes{1}, 1);
  };
  Names inputs{x, operand()};
  if (name == "LayerNormalization" && draw.one_in(2)) inputs.push_back(operand());
  draw.emit1(name, inputs, {{"axis", axis}, {"epsilon", draw.one_in(2) ? 1e-3f : 0.1f}});
}

void channel_norm(Draw& draw, const std::string& name) {
  const std::string x = draw.of_rank(3, 5);
  const int64_t channels = draw.axes(x)[1];
  Attributes attributes{{"epsilon", draw.one_in(2) ? 1e-3f : 0.05f}};
  if (name == "GroupNormalization") attributes.set("num_groups", draw.one_in(2) ? channels : 1);
  draw.emit1(name, {x, draw.weight({channels}, 1), draw.weight({channels}, 1)}, attributes);
}

void batch_norm(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(2, 5);
  const int64_t channels = draw.axes(x)[1];
  std::vector<double> mean, variance;
  for (int64_t i = 0; i < channels; ++i) {
    mean.push_back(draw.real(-1, 1));
    variance.push_back(draw.real(0.5, 2));
  }
  const TensorDesc desc{DType::kFloat32, {channels}};
  const Names inputs{x, draw.weight({channels}, 1), draw.weight({channels}, 1),
                     draw.constant(desc, mean), draw.constant(desc, variance)};
  const bool trains = draw.graph.opset >= 14 && draw.one_in(2);
  draw.emit("BatchNormalization", inputs, {{"epsilon", 1e-2f}, {"training_mode", int64_t{trains}}},
            1);
}

// --- images ---

void conv(Draw& draw, const std::string& name) {
  const std::string x = draw.of_rank(3, 5);
  const int64_t channels = draw.axes(x)[1];
  const int64_t group = draw.one_in(3) ? channels : 1;
  const bool transposed = name == "ConvTranspose";
  const int64_t out = draw.between(1, 4);
  Axes shape = transposed ? Axes{channels, out} : Axes{out * group, channels / group};
  Axes kernel, strides, pads, dilations;
  for (int i = 2; i < draw.rank(x); ++i) {
    const int64_t size = draw.axes(x)[static_cast<size_t>(i)];
    kernel.push_back(draw.between(1, std::min<int64_t>(size, 3)));
    strides.push_back(draw.between(1, 2));
    dilations.push_back(size > 2 * kernel.back() && draw.one_in(4) ? 2 : 1);
    pads.push_back(draw.one_in(2) ? 0 : draw.between(0, kernel.back() - 1));
  }
  pads.insert(pads.end(), pads.begin(), pads.end());
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  Names inputs{x, draw.weight(shape)};
  if (draw.one_in(2)) inputs.push_back(draw.weight({out * group}));
  draw.emit1(name, inputs,
             {{"group", group},
              {"kernel_shape", kernel},
              {"strides", strides},
              {"pads", pads},
              {"dilations", dilations}});
}

void pool(Draw& draw, const std::string& name) {
  Axes image{draw.graph.batch, draw.between(1, 3), draw.between(3, 6)};
  if (draw.one_in(2)) image.push_back(draw.between(3, 6));
  const std::string x = draw.one_in(2) ? draw.of_rank(3, 5) : draw.of_shape(image);
  Axes kernel, strides, pads;
  for (int i = 2; i < draw.rank(x); ++i) {
    kernel.push_back(draw.between(1, std::min<int64_t>(draw.axes(x)[static_cast<size_t>(i)], 3)));
    strides.push_back(draw.between(1, 2));
    pads.push_back(draw.one_in(2) ? 0 : draw.between(0, kernel.back() - 1));
  }
  pads.insert(pads.end(), pads.begin(), pads.end());
  Attributes attributes{{"kernel_shape", kernel}, {"strides", strides}, {"pads", pads}};
  Axes dilations(kernel.size(), 1);
  if (name == "AveragePool") attributes.set("count_include_pad", int64_t{draw.one_in(2)});
  if (name == "LpPool") attributes.set("p", draw.between(1, 3));
  if (name == "MaxPool" && draw.graph.opset >= 10 && draw.one_in(2)) {
    for (size_t i = 0; i < kernel.size(); ++i) {
      const bool fits = 2 * kernel[i] - 1 <= draw.axes(x)[i + 2];
      dilations[i] = fits ? draw.between(1, 2) : 1;
    }
    attributes.set("dilations", dilations);
  }
  if (draw.one_in(3) && name != "LpPool") attributes.set("ceil_mode", int64_t{1});
  draw.emit1(name, {x}, attributes);
}

void global_pool(Draw& draw, const std::string& name) { draw.emit1(name, {draw.of_rank(3, 5)}); }

// --- empty and one-element tensors ---

void empty(Draw& draw, const std::string&) {
  const std::string x = draw.of_rank(1, 3);
  const std::string none = draw.emit1("Slice", {x, draw.ints({0}), draw.ints({0}), draw.ints({0})});
  const std::string more = draw.emit1(draw.one_in(2) ? "Tanh" : "Relu", {none});
  draw.emit1("Concat", {more, x}, {{"axis", int64_t{0}}});
}

void one_element(Draw& draw, const std::string&) {
  const std::string x = draw.any();
  const std::string one = draw.emit1("ReduceMean", {x}, {{"keepdims", int64_t{draw.one_in(2)}}});
  draw.emit1(draw.one_in(2) ? "Mul" : "Add", {draw.any(), one});
}

// --- losses in the graph ---

void class_loss(Draw& draw, const std::string& name) {
  const std::string x = draw.of_rank(2, 4);
  const int64_t classes = draw.axes(x)[1];
  Axes labels = draw.axes(x);
  labels.erase(labels.begin() + 1);
  Attributes attributes{{"reduction", draw.one_of(Names{"mean", "sum", "none"})}};
  std::vector<double> values;
  for (int64_t i = 0; i < Shape(labels).numel(); ++i) {
    values.push_back(static_cast<double>(draw.below(classes)));
  }
  if (draw.one_in(3)) {
    attributes.set("ignore_index", int64_t{-100});
    values[static_cast<size_t>(draw.below(static_cast<int64_t>(values.size())))] = -100;
    if (values.size() == 1) values[0] = 0;
  }
  Names inputs{
      name == "SoftmaxCrossEntropyLoss" ? x : draw.emit1("LogSoftmax", {x}, {{"axis", int64_t{1}}}),
      draw.constant({DType::kInt64, Shape(labels)}, values)};
  if (draw.one_in(3)) inputs.push_back(draw.class_weights(classes));
  draw.emit1(name, inputs, attributes);
}

void add_all(std::vector<Recipe>& recipes, int weight, void (*draw)(Draw&, const std::string&),
             const Names& names) {
  for (const std::string& name : names) recipes.push_back({name, weight, draw});
}

}  // namespace

std::vector<Recipe> operator_recipes(const Registry& registry) {
  std::vector<Recipe> recipes;
  add_all(recipes, 2, unary,
          {"Relu",        "Tanh",      "Sigmoid", "Neg",        "Abs",
           "Exp",         "Log",       "Sqrt",    "Reciprocal", "Softplus",
           "Softsign",    "Elu",       "Selu",    "LeakyRelu",  "Celu",
           "HardSigmoid", "HardSwish", "Mish",    "Gelu",       "ThresholdedRelu",
           "Shrink",      "Erf",       "Sin",     "Cos",        "Tan",
           "Asin",        "Acos",      "Atan",    "Sinh",       "Cosh",
           "Asinh",       "Acosh",     "Atanh",   "Identity",   "Swish"});
  add_all(recipes, 5, binary, {"Add", "Sub", "Mul", "Div", "Pow", "PRelu"});
  add_all(recipes, 3, variadic, {"Max", "Min", "Mean", "Sum"});
  add_all(recipes, 3, clip, {"clip"});
  add_all(recipes, 3, where, {"where"});
  add_all(recipes, 9, mat_mul, {"MatMul"});
  add_all(recipes, 9, gemm, {"Gemm"});
  add_all(recipes, 7, transpose, {"Transpose"});
  add_all(recipes, 6, reshape, {"Reshape"});
  add_all(recipes, 2, dropout, {"Dropout"});
  add_all(recipes, 3, flatten, {"Flatten"});
  add_all(recipes, 3, unsqueeze, {"unsqueeze"});
  add_all(recipes, 3, expand, {"Expand"});
  add_all(recipes, 5, concat, {"Concat"});
  add_all(recipes, 4, split, {"Split"});
  add_all(recipes, 5, slice, {"Slice"});
  add_all(recipes, 5, gather, {"Gather"});
  add_all(recipes, 4, pad, {"Pad"});
  add_all(recipes, 3, reduce,
          {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
           "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"});
  add_all(recipes, 3, cum_sum, {"CumSum"});
  add_all(recipes, 4, softmax, {"Softmax", "LogSoftmax"});
  add_all(recipes, 4, layer_norm, {"LayerNormalization", "RMSNormalization"});
  add_all(recipes, 3, channel_norm, {"InstanceNormalization", "GroupNormalization"});
  add_all(recipes, 4, batch_norm, {"BatchNormalization"});
  add_all(recipes, 6, conv, {"Conv", "ConvTranspose"});
  add_all(recipes, 3, pool, {"MaxPool", "AveragePool", "LpPool"});
  add_all(recipes, 2, global_pool, {"GlobalAveragePool", "GlobalMaxPool"});
  add_all(recipes, 2, empty, {"empty"});
  add_all(recipes, 3, one_element, {"one_element"});
  add_all(recipes, 4, class_loss, {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"});
  for (const auto& [key, op] : registry.all()) {
    if (op.domain == kOwnDomain || !has_gradient(op) || op.reference == nullptr) continue;
    if (op.name == "SoftmaxCrossEntropyLoss" || op.name == "NegativeLogLikelihoodLoss") continue;
    const auto samples = testing::samples_of(op);
    const auto fits = [&op = op](const SampleCase& s) { return usable(op, s); };
    if (std::ranges::any_of(samples, fits)) recipes.push_back({op.full_name(), 1, draw_sample});
  }
  return recipes;
}

}  // namespace ofsdp::graphs

#include "tests/graphs/draw.h"

#include <onnx/defs/schema.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace ofsdp::graphs {

Draw::Draw(const Registry& known, uint64_t seed) : registry(known), random(seed) {
  graph.opset = one_in(3) ? static_cast<int>(between(7, 28)) : static_cast<int>(between(17, 28));
  graph.batch = between(1, 4);
  graph.fixed_batch = one_in(4);
  const int64_t inputs = between(1, 2);
  for (int64_t i = 0; i < inputs; ++i) {
    Axes shape{graph.batch};
    const int64_t further = between(1, 4);
    for (int64_t axis = 0; axis < further; ++axis) shape.push_back(between(1, further > 2 ? 5 : 9));
    const std::string name = fresh("x");
    const TensorDesc desc{DType::kFloat32, Shape(shape)};
    graph.values[name] = {Kind::kInput, {desc, column_values(name, desc)}, false};
    graph.inputs.push_back(name);
    floats_.push_back(name);
    leaves_.push_back(name);
  }
}

std::string Draw::any() {
  // Late values more often, so graphs become deep; trained ones more often, for gradients.
  const auto size = static_cast<int64_t>(floats_.size());
  std::string name;
  for (int tries = 0; tries < 3; ++tries) {
    const int64_t at = one_in(2) ? size - 1 - below(std::min<int64_t>(size, 3)) : below(size);
    name = floats_[static_cast<size_t>(at)];
    if (graph.values.at(name).trained) break;
  }
  return name;
}

std::string Draw::of_rank(int low, int high) {
  for (int i = 0; i < 6; ++i) {
    const std::string name = any();
    if (rank(name) >= low && rank(name) <= high && numel(name) > 0) return name;
  }
  const auto wanted = static_cast<size_t>(between(low, high));
  Axes shape;
  for (size_t i = 0; i < wanted; ++i) shape.push_back(between(1, wanted > 2 ? 5 : 8));
  if (wanted > 0) shape[0] = graph.batch;
  return of_shape(shape);
}

// Reshapes if the count fits; else repeats the elements, or takes some.
std::string Draw::of_shape(const Axes& shape) {
  const int64_t wanted = Shape(shape).numel();
  std::string name;
  for (int i = 0; i < 5 && name.empty(); ++i) {
    const std::string one = any();
    if (axes(one) == shape) return one;
    if (numel(one) == wanted && wanted > 0) name = one;
  }
  if (name.empty()) {
    const std::string from = any();
    if (numel(from) == 0 || wanted == 0) return weight(shape);
    std::string flat = emit1("Reshape", {from, ints({numel(from)})});
    if (numel(from) < wanted) {
      flat = emit1("Tile", {flat, ints({(wanted + numel(from) - 1) / numel(from)})});
    }
    if (numel(flat) > wanted) flat = emit1("Slice", {flat, ints({0}), ints({wanted}), ints({0})});
    const bool trained = graph.values.at(flat).trained;
    if (!one_in(trained ? 2 : 8)) flat = emit1("Mul", {flat, weight({wanted}, 1)});
    name = flat;
  }
  return emit1("Reshape", {name, ints(shape)});
}

std::string Draw::positive(double low) {
  const std::string x = any();
  std::string made;
  switch (below(5)) {
    case 0:
      made = emit1("Abs", {x});
      break;
    case 1:
      made = emit1("Softplus", {x});
      break;
    case 2:
      made = emit1("Mul", {x, x});
      break;
    case 3:
      made = emit1("Sigmoid", {x});
      break;
    default:
      made = emit1("Exp", {emit1("Tanh", {x})});
      break;
  }
  return emit1("Add", {made, scalar(low)});
}

std::string Draw::bounded(double high) {
  const std::string x = any();
  std::string made;
  switch (below(3)) {
    case 0:
      made = emit1("Tanh", {x});
      break;
    case 1:
      made = emit1("Softsign", {x});
      break;
    default:
      made = emit1("Sub", {emit1("Sigmoid", {x}), scalar(0.5)});
      break;
  }
  return emit1("Mul", {made, scalar(high * 0.9)});
}

std::string Draw::weight(const Axes& shape, double scale) {
  if (one_in(8)) {
    for (const std::string& name : weights_) {
      if (axes(name) == shape) return name;
    }
  }
  const int64_t count = Shape(shape).numel();
  if (scale == 0) {
    const double fan = shape.empty() ? 1
                                     : static_cast<double>(std::max<int64_t>(count, 1)) /
                                           static_cast<double>(std::max<int64_t>(shape[0], 1));
    scale = 1.0 / std::sqrt(std::max(1.0, fan));
  }
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(normal(random));
  return weight_of({DType::kFloat32, Shape(shape)}, std::move(values));
}

std::string Draw::weight_of(const TensorDesc& desc, std::vector<double> values) {
  for (double& v : values) v = static_cast<double>(static_cast<float>(v));
  const std::string name = fresh("w");
  graph.values[name] = {Kind::kWeight, {desc, std::move(values)}, true};
  weights_.push_back(name);
  return name;
}

std::string Draw::constant(const TensorDesc& desc, std::vector<double> values) {
  if (is_floating(desc.dtype)) {
    for (double& v : values) v = static_cast<double>(static_cast<float>(v));
  }
  const std::string name = fresh("c");
  graph.values[name] = {Kind::kConstant, {desc, std::move(values)}, false, true};
  return name;
}

std::string Draw::class_weights(int64_t classes) {
  std::vector<double> weights;
  for (int64_t i = 0; i < classes; ++i) weights.push_back(real(0.3, 2));
  return constant({DType::kFloat32, {classes}}, weights);
}

std::string Draw::fitting(const Axes& shape) {
  Axes own = shape;
  const auto dropped =
      static_cast<size_t>(one_in(2) ? below(static_cast<int64_t>(own.size()) + 1) : 0);
  own.erase(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(dropped));
  for (int64_t& axis : own) {
    if (one_in(4)) axis = 1;
  }
  if (!one_in(5)) return weight(own, 1);
  std::vector<double> values;
  for (int64_t i = 0; i < Shape(own).numel(); ++i) values.push_back(real(-2, 2));
  return constant({DType::kFloat32, Shape(own)}, values);
}

bool Draw::has(const std::string& op) const {
  const size_t dot = op.rfind('.');
  if (dot != std::string::npos)
    return registry.find(op.substr(0, dot), op.substr(dot + 1)) != nullptr;
  const auto* schema = onnx::OpSchemaRegistry::Schema(op, graph.opset, "");
  return schema != nullptr && !schema->Deprecated() && registry.find("", op) != nullptr;
}

void Draw::check(const std::string& op, const RefTensor& tensor) const {
  if (tensor.desc.numel() > most_elements) throw Refused(op + ": too many elements");
  if (!is_floating(tensor.desc.dtype)) return;
  for (const double v : tensor.values) {
    if (op == "Add" && v <= kHidden / 2) continue;
    if (!(std::abs(v) <= kLargest)) throw Refused(op + ": too large");
  }
}

// Refuses a node if the output jumps when operands move by float32's rounding, or by the rounding
// of a difference between numbers as large: Sign next to 0, a variance of equal numbers.
void Draw::check_jump(const DrawnNode& node, const std::vector<RefTensor>& made) {
  static const std::set<std::string> kJump = {"Floor", "Ceil", "Round",
                                              "Sign",  "Mod",  "MeanVarianceNormalization"};
  if (!kJump.contains(node.op->name)) return;
  for (const double sign : {-1.0, 1.0}) {
    DrawnGraph moved = graph;
    for (const std::string& name : node.inputs) {
      RefTensor& tensor = moved.values.at(name).tensor;
      if (!is_floating(tensor.desc.dtype)) return;
      double most = 1e-3;
      for (const double v : tensor.values) most = std::max(most, std::abs(v));
      for (double& v : tensor.values)
        v += sign * 1e-6 * most * static_cast<double>(1 + random() % 2);
    }
    const auto again = evaluated(moved, node);
    for (size_t i = 0; i < made[0].values.size(); ++i) {
      if (std::abs(again[0].values[i] - made[0].values[i]) > 1e-3)
        throw Refused(node.op->name + ": jumps");
    }
  }
}

// Makes a loop with several rounds, if the output fits the operand and stays in range.
void Draw::go_around(DrawnNode& node, int64_t rounds) {
  if (graph.tensor(node.inputs[0]).desc != graph.tensor(node.outputs[0]).desc) return;
  DrawnNode repeated = node;
  repeated.rounds = rounds;
  try {
    const RefTensor made = evaluated(graph, repeated)[0];
    check(node.op->name, made);
    graph.values[node.outputs[0]].tensor = made;
    node.rounds = rounds;
  } catch (const Refused&) {  // keeps one round
  }
}

Names Draw::emit(const std::string& op, const Names& inputs, const Attributes& attributes,
                 size_t outputs) {
  if (!has(op)) throw Refused(op + ": not there");
  DrawnNode node{&registry.get(op), inputs, {}, attributes};
  for (size_t i = 0; i < outputs; ++i) node.outputs.push_back(fresh("v"));
  const auto made = evaluated(graph, node);
  bool trained = false, known = true;
  for (const std::string& name : inputs) {
    trained = trained || (!name.empty() && graph.values.at(name).trained);
    known = known && (name.empty() || graph.values.at(name).known);
  }
  known = known || node.op->shape_only;
  for (size_t i = 0; i < outputs; ++i) {
    if (i >= made.size() || !made[i].desc.present()) throw Refused(op + ": no such output");
    check(op, made[i]);
  }
  check_jump(node, made);
  for (size_t i = 0; i < outputs; ++i) {
    graph.values[node.outputs[i]] = {Kind::kNode, made[i], trained, known};
    if (made[i].desc.dtype != DType::kFloat32) continue;
    const bool hides = std::ranges::any_of(made[i].values, [](double v) { return v < -kLargest; });
    if (!hides) floats_.push_back(node.outputs[i]);
    leaves_.push_back(node.outputs[i]);
  }
  for (const std::string& name : inputs) std::erase(leaves_, name);
  const bool one = outputs == 1 && !node.op->random && made[0].desc.dtype == DType::kFloat32 &&
                   !inputs.empty() && !inputs[0].empty() && graph.opset >= 11;
  if (one && one_in(40)) node.around = Around::kIf;
  if (one && one_in(30) && graph.tensor(inputs[0]).desc.dtype == DType::kFloat32) {
    node.around = Around::kLoop;
    go_around(node, between(1, 3));
  }
  graph.nodes.push_back(node);
  return node.outputs;
}

bool Draw::within(const std::string& name, double bound) const {
  return std::ranges::all_of(graph.tensor(name).values,
                             [&](double v) { return std::abs(v) <= bound; });
}

// A number made from all elements of a leaf, each with a different factor.
std::string Draw::term(const std::string& leaf) {
  std::string value = leaf;
  if (numel(leaf) > 1 && one_in(2)) {
    std::vector<double> values;
    for (int64_t i = 0; i < numel(leaf); ++i) values.push_back(real(-1, 1));
    value = emit1("Mul", {value, constant({DType::kFloat32, Shape(axes(leaf))}, values)});
  } else if (one_in(2) && within(leaf, 6)) {
    value = emit1("Mul", {value, value});
  }
  if (rank(value) == 0) return value;
  const bool sums = one_in(4) && within(value, kLargest / static_cast<double>(numel(leaf)));
  const char* const op = sums ? "ReduceSum" : "ReduceMean";
  return emit1(op, {value}, {{"keepdims", int64_t{0}}});
}

// The labels for the last value with classes, a column of the data.
bool Draw::finish_with_labels() {
  for (auto leaf = leaves_.rbegin(); leaf != leaves_.rend(); ++leaf) {
    const bool fits = rank(*leaf) == 2 && axes(*leaf)[0] == graph.batch && axes(*leaf)[1] > 1 &&
                      graph.values.at(*leaf).trained && has("SoftmaxCrossEntropyLoss");
    if (!fits) continue;
    const bool ignores = one_in(2);
    const std::string name =
        format_text("{}_classes{}{}", fresh("labels"), axes(*leaf)[1], ignores ? "_ignore" : "");
    const TensorDesc desc{DType::kInt64, {graph.batch}};
    graph.values[name] = {Kind::kInput, {desc, column_values(name, desc)}, false, false};
    graph.inputs.push_back(name);
    Attributes attributes{{"reduction", std::string("mean")}};
    if (ignores) attributes.set("ignore_index", int64_t{-100});
    const std::string scores = *leaf;
    graph.loss = emit1("SoftmaxCrossEntropyLoss", {scores, name}, attributes);
    graph.nodes.back().around = Around::kNothing;
    return true;
  }
  return false;
}

void Draw::finish() {
  if (one_in(4) && finish_with_labels()) return;
  Names ends = leaves_;
  std::string sum;
  for (const std::string& leaf : ends) {
    if (numel(leaf) == 0 || !graph.values.at(leaf).trained) continue;
    const std::string one = term(leaf);
    sum = sum.empty() ? one : emit1("Add", {sum, one});
  }
  if (sum.empty()) {  // nothing is trained
    const std::string x = of_rank(1, 3);
    sum = emit1("ReduceMean", {emit1("Mul", {x, weight({axes(x).back()}, 1)})},
                {{"keepdims", int64_t{0}}});
  }
  graph.loss = sum;
}

// Undoes the work of a recipe that throws.
class Attempt {
 public:
  explicit Attempt(Draw& draw)
      : draw_(draw),
        graph_(draw.graph),
        floats_(draw.floats_),
        leaves_(draw.leaves_),
        weights_(draw.weights_) {
    draw.most_elements = kMaxElements;
  }
  void undo() {
    draw_.graph = graph_;
    draw_.floats_ = floats_;
    draw_.leaves_ = leaves_;
    draw_.weights_ = weights_;
  }

 private:
  Draw& draw_;
  DrawnGraph graph_;
  Names floats_, leaves_, weights_;
};

// Reading the sample cases takes as long as drawing: once in a process, which has one registry.
const std::vector<Recipe>& all_recipes(const Registry& registry) {
  static const std::vector<Recipe> recipes = [&] {
    std::vector<Recipe> made = operator_recipes(registry);
    for (const std::vector<Recipe>& more : {idiom_recipes(), block_recipes()}) {
      made.insert(made.end(), more.begin(), more.end());
    }
    return made;
  }();
  return recipes;
}

DrawnGraph drawn(const Registry& registry, const DrawSettings& settings,
                 std::vector<std::string>* used) {
  std::vector<Recipe> recipes = all_recipes(registry);
  if (!settings.only.empty()) {
    std::erase_if(recipes,
                  [&](const Recipe& r) { return std::ranges::count(settings.only, r.name) == 0; });
  }
  std::vector<size_t> chances;
  for (size_t i = 0; i < recipes.size(); ++i) {
    chances.insert(chances.end(), static_cast<size_t>(recipes[i].weight), i);
  }
  Draw draw(registry, settings.seed);
  const auto nodes = static_cast<size_t>(draw.between(4, settings.most_nodes));
  for (int tries = 0; draw.graph.nodes.size() + 4 < nodes && tries < 200; ++tries) {
    Attempt attempt(draw);
    const Recipe& recipe = recipes[draw.one_of(chances)];
    const size_t before = draw.graph.nodes.size();
    try {
      recipe.draw(draw, recipe.name);
      check_forms(draw.graph, before);
      if (used != nullptr) used->push_back(recipe.name);
    } catch (const Refused&) {
      attempt.undo();
    }
  }
  draw.finish();
  drop_unused(draw.graph);
  return draw.graph;
}

}  // namespace ofsdp::graphs

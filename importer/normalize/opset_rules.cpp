#include "importer/normalize/opset_rules.h"

#include <onnx/version_converter/adapters/group_normalization_20_21.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

template <typename T>
void append_raw(const std::string& raw, std::vector<double>& to) {
  for (size_t at = 0; at + sizeof(T) <= raw.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, raw.data() + at, sizeof(T));
    to.push_back(static_cast<double>(value));
  }
}

// Returns nothing for element types that no rule reads, or if bytes are missing.
std::optional<std::vector<double>> numbers_of(const onnx::Tensor& tensor) {
  std::vector<double> all;
  const auto take = [&]<typename T>(const std::vector<T>& list) {
    if (tensor.is_raw_data()) return append_raw<T>(tensor.raw(), all);
    all.assign(list.begin(), list.end());
  };
  const int type = tensor.elem_type();
  if (type == onnx::TensorProto::FLOAT) take(tensor.floats());
  if (type == onnx::TensorProto::DOUBLE) take(tensor.doubles());
  if (type == onnx::TensorProto::INT64) take(tensor.int64s());
  if (type == onnx::TensorProto::INT32) take(tensor.int32s());
  int64_t count = 1;
  for (const int64_t size : tensor.sizes()) count *= size;
  if (static_cast<int64_t>(all.size()) != count) return {};
  return all;
}

}  // namespace

int64_t OldNode::i(const char* attribute, int64_t otherwise) const {
  return has(attribute) ? node_->i(onnx::Symbol(attribute)) : otherwise;
}

std::string OldNode::s(const char* attribute, const char* otherwise) const {
  return has(attribute) ? node_->s(onnx::Symbol(attribute)) : otherwise;
}

void OldNode::drop(const char* attribute) {
  if (has(attribute)) node_->removeAttribute(onnx::Symbol(attribute));
}

bool OldNode::reads(size_t input) const {
  const auto inputs = node_->inputs();
  return input < inputs.size() && !inputs[input]->uniqueName().empty();
}

bool OldNode::gives(size_t output) const {
  return output < node_->outputs().size() && !node_->outputs()[output]->uses().empty();
}

Result<int64_t> OldNode::rank(size_t input) const {
  const onnx::Value* value = node_->inputs()[input];
  if (value->has_sizes()) return static_cast<int64_t>(value->sizes().size());
  return input_error(
      "expected the number of axes of '{}' to be known, found no shape; declare it, or export with "
      "a newer opset",
      value->uniqueName());
}

std::optional<std::vector<double>> OldNode::numbers(size_t input) const {
  onnx::Value* value = node_->inputs()[input];
  if (value->node()->kind() == onnx::kConstant) {
    if (!value->node()->hasAttribute(onnx::kvalue)) return {};
    return numbers_of(value->node()->t(onnx::kvalue));
  }
  const std::string name = value->uniqueName();
  const auto stored = graph_->getInitializer(name);
  if (stored != graph_->initializers().end()) {
    if (auto numbers = numbers_of(*stored)) return numbers;
  }
  const auto floats = floats_of_ ? floats_of_(name) : std::nullopt;
  if (!floats) return {};
  return std::vector<double>(floats->begin(), floats->end());
}

onnx::Value* OldNode::before(const char* op, const std::vector<onnx::Value*>& inputs) {
  onnx::Node* made = graph_->create(onnx::Symbol(op), inputs);
  if (node_->has_name()) made->setName(node_->name() + "/" + op);
  return made->insertBefore(node_)->output();
}

onnx::Value* OldNode::constant(const onnx::Tensor& tensor) {
  onnx::Node* made = graph_->create(onnx::kConstant);
  made->t_(onnx::kvalue, tensor);
  return made->insertBefore(node_)->output();
}

onnx::Value* OldNode::ints(std::vector<int64_t> values, bool scalar) {
  onnx::Tensor tensor;
  tensor.elem_type() = onnx::TensorProto::INT64;
  if (!scalar) tensor.sizes() = {static_cast<int64_t>(values.size())};
  tensor.int64s() = std::move(values);
  return constant(tensor);
}

onnx::Value* OldNode::floats(std::vector<float> values, bool scalar) {
  onnx::Tensor tensor;
  tensor.elem_type() = onnx::TensorProto::FLOAT;
  if (!scalar) tensor.sizes() = {static_cast<int64_t>(values.size())};
  tensor.floats() = std::move(values);
  return constant(tensor);
}

onnx::Value* OldNode::truth(bool value) {
  onnx::Tensor tensor;
  tensor.elem_type() = onnx::TensorProto::BOOL;
  tensor.int32s() = {value ? 1 : 0};
  return constant(tensor);
}

onnx::Value* OldNode::none() {
  onnx::Node* made = graph_->create(onnx::kUndefined);
  made->insertBefore(node_)->output()->setUniqueName("");
  return made->output();
}

void OldNode::set_inputs(const std::vector<onnx::Value*>& inputs) {
  node_->removeAllInputs();
  for (onnx::Value* input : inputs) node_->addInput(input);
}

// Gives `old`'s name, type and readers to `made`. Subgraphs read it by that name.
void OldNode::take_over(onnx::Value* old, onnx::Value* made) {
  const std::string name = old->uniqueName();
  old->setUniqueName(graph_->getNextUniqueName(), false);
  const onnx::use_list uses = old->uses();
  made->setUniqueName(name, false);
  made->setElemType(old->elemType());
  if (old->has_sizes()) made->setSizes(old->sizes());
  old->wipeSizes();
  for (const onnx::Use& use : uses) use.user->replaceInput(use.offset, made);
}

void OldNode::replace_by(onnx::Node* made) {
  take_over(node_->output(), made->output());
  node_->destroy();
  node_ = last_ = made;
}

onnx::Node* OldNode::follow(size_t output, const char* op, const std::vector<onnx::Value*>& more) {
  onnx::Value* old = node_->outputs()[output];
  onnx::Node* made = graph_->create(onnx::Symbol(op));
  made->insertAfter(last_);
  take_over(old, made->output());
  made->addInput(old);
  for (onnx::Value* input : more) made->addInput(input);
  last_ = made;
  return made;
}

namespace {

using Values = std::vector<onnx::Value*>;

onnx::Symbol symbol(const char* name) { return onnx::Symbol(name); }

// --- opset 1 ---

// The text gives the order begins, ends; the example has each axis's begin and end in turn.
Status name_pads(OldNode& n) {
  const std::vector<int64_t> pads = n.node()->is(symbol("paddings"));
  const size_t rank = pads.size() / 2;
  for (size_t axis = 0; axis < rank; ++axis) {
    OFSDP_REJECT_IF(pads[axis] != pads[2 * axis] || pads[rank + axis] != pads[2 * axis + 1],
                    "paddings: expected an order that the standard's text and its example read "
                    "alike, found another; export with opset 2 or newer");
  }
  n.drop("paddings");
  n.node()->is_(symbol("pads"), std::vector<int64_t>(pads));
  return ok_status();
}

Status whole_exponent(OldNode& n) {
  if (!n.has("p")) return ok_status();
  const double p = n.node()->f(symbol("p"));
  OFSDP_REJECT_IF(p != std::floor(p), "p: expected a whole number, found {}", p);
  n.drop("p");
  n.node()->i_(symbol("p"), static_cast<int64_t>(p));
  return ok_status();
}

Status split_by_attribute(OldNode& n) {
  OFSDP_REJECT_IF(!n.has("axis"), "axis: expected, since this opset names no default");
  if (!n.reads(1)) return ok_status();
  const auto sizes = n.numbers(1);
  OFSDP_REJECT_IF(!sizes, "input 'split': expected a constant, found a computed value");
  n.set_inputs({n.node()->inputs()[0]});
  n.node()->is_(symbol("split"), std::vector<int64_t>(sizes->begin(), sizes->end()));
  return ok_status();
}

Status keep(OldNode&) { return ok_status(); }

// --- opset 5 ---

Status type_by_number(OldNode& n) {
  std::string name = n.s("to", "");
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  onnx::TensorProto::DataType type{};
  OFSDP_REJECT_IF(!onnx::TensorProto::DataType_Parse(name, &type),
                  "to: expected the name of an element type, found '{}'", n.s("to", ""));
  n.drop("to");
  n.node()->i_(symbol("to"), int64_t{type});
  return ok_status();
}

// Copies along `axis` `tiles` times; needs no rank.
Status join_copies(OldNode& n) {
  constexpr double kMaxCopies = 4096;
  const auto tiles = n.numbers(1), axis = n.numbers(2);
  OFSDP_REJECT_IF(!tiles || !axis || tiles->size() != 1 || axis->size() != 1,
                  "inputs 'tiles' and 'axis': expected one constant each; export with opset 6");
  const double copies = (*tiles)[0];
  OFSDP_REJECT_IF(!(copies >= 1 && copies <= kMaxCopies),
                  "input 'tiles': expected 1 to {} copies, found {}", kMaxCopies, copies);
  const Values inputs(static_cast<size_t>(copies), n.node()->inputs()[0]);
  onnx::Node* concat = n.before("Concat", inputs)->node();
  concat->i_(symbol("axis"), static_cast<int64_t>((*axis)[0]));
  n.replace_by(concat);
  return ok_status();
}

Status short_selu_constants(OldNode& n) {
  n.drop("consumed_inputs");
  if (!n.has("alpha")) n.node()->f_(symbol("alpha"), 1.6732);
  if (!n.has("gamma")) n.node()->f_(symbol("gamma"), 1.0507);
  return ok_status();
}

// --- opset 6 ---

onnx::Value* with_axes_behind(OldNode& n, size_t input, int64_t rank, int64_t count) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < count; ++i) axes.push_back(rank + i);
  onnx::Value* wide = n.before("Unsqueeze", {n.node()->inputs()[input]});
  wide->node()->is_(symbol("axes"), std::move(axes));
  return wide;
}

// With broadcast=1, B's axes are A's axes from `axis` on; without `axis`, the last ones, as since
// opset 7.
Status broadcast_from_axis(OldNode& n) {
  const bool broadcasts = n.i("broadcast", 0) != 0 && n.i("axis", -1) != -1;
  const int64_t axis = n.i("axis", -1);
  n.drop("broadcast");
  n.drop("axis");
  if (!broadcasts) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const int64_t a, n.rank(0));
  OFSDP_ASSIGN_OR_RETURN(const int64_t b, n.rank(1));
  const int64_t from = axis < 0 ? axis + a : axis;
  OFSDP_REJECT_IF(from < 0 || from + b > a,
                  "axis: expected the {} axes of B among the {} of A, found them from axis {} on",
                  b, a, axis);
  if (from + b == a) return ok_status();
  n.set_inputs({n.node()->inputs()[0], with_axes_behind(n, 1, b, a - from - b)});
  return ok_status();
}

// A slope with more than one element has one for each channel.
Status slope_by_channel(OldNode& n) {
  OFSDP_ASSIGN_OR_RETURN(const int64_t slope, n.rank(1));
  if (slope != 1) return ok_status();
  const onnx::Dimension& size = n.node()->inputs()[1]->sizes()[0];
  if (size.is_int && size.dim == 1) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const int64_t x, n.rank(0));
  if (x <= 2) return ok_status();
  n.set_inputs({n.node()->inputs()[0], with_axes_behind(n, 1, 1, x - 2)});
  return ok_status();
}

Status drop_broadcast(OldNode& n) {
  n.drop("broadcast");
  return ok_status();
}

Status drop_output_sequence(OldNode& n) {
  n.drop("output_sequence");
  return ok_status();
}

// Outputs distinguish training from inference (normalized_model.cpp); is_test must not contradict
// them.
Status statistics_by_outputs(OldNode& n) {
  if (!n.has("is_test")) return ok_status();
  const bool tests = n.i("is_test", 0) != 0;
  n.drop("is_test");
  const size_t outputs = n.node()->outputs().size();
  OFSDP_REJECT_IF(!tests && outputs == 1,
                  "is_test: expected 1 with one output, found 0 (training), which has statistics "
                  "as outputs, too");
  for (size_t i = outputs; tests && i-- > 1;) {
    OFSDP_REJECT_IF(n.gives(i), "is_test=1: expected one output, found that '{}' is read",
                    n.node()->outputs()[i]->uniqueName());
    n.node()->eraseOutput(i);
  }
  return ok_status();
}

// An explicit is_test=0 means training; without it the file leaves the mode open.
Status mark_dropout(OldNode& n) {
  if (n.has("is_test") && n.i("is_test", 0) == 0) n.node()->i_(symbol("training_mode"), int64_t{1});
  n.drop("is_test");
  return ok_status();
}

Status scale_every_axis(OldNode& n) {
  OFSDP_REJECT_IF(!n.has("width_scale") || !n.has("height_scale"),
                  "expected width_scale and height_scale");
  const double height = n.node()->f(symbol("height_scale"));
  const double width = n.node()->f(symbol("width_scale"));
  n.drop("height_scale");
  n.drop("width_scale");
  n.node()->fs_(symbol("scales"), {1, 1, height, width});
  if (n.s("mode", "nearest") == "bilinear") n.node()->s_(symbol("mode"), "linear");
  return ok_status();
}

// --- opsets 8 to 11 ---

// spatial=0: each element in a sample has its own statistics.
Status channels_of_elements(OldNode& n) {
  const bool spatial = n.i("spatial", 1) != 0;
  n.drop("spatial");
  if (spatial) return ok_status();
  OFSDP_REJECT_IF(n.i("training_mode", 0) != 0,
                  "spatial: expected 1 in training, found 0; export with opset 9 or newer");
  const auto given = n.node()->inputs();
  Values inputs = {n.before("Flatten", {given[0]})};
  inputs[0]->node()->i_(symbol("axis"), int64_t{1});
  onnx::Value* shape = n.before("Shape", {given[0]});
  onnx::Value* flat = n.ints({-1});
  for (size_t i = 1; i < given.size(); ++i) inputs.push_back(n.before("Reshape", {given[i], flat}));
  n.set_inputs(inputs);
  n.follow(0, "Reshape", {shape});
  return ok_status();
}

// ONNX's own adapter drops the batch axis.
Status refuse_batch_axis(OldNode&) {
  return input_error("expected no batch axis, found one; export with opset 9 or newer");
}

// ONNX's own adapter does this too, but forgets the node's name.
Status resize_by_scales(OldNode& n) {
  onnx::Node* resize = n.before("Resize", {n.node()->inputs()[0], n.node()->inputs()[1]})->node();
  if (n.node()->has_name()) resize->setName(n.node()->name());
  resize->s_(symbol("mode"), n.s("mode", "nearest"));
  n.replace_by(resize);
  return ok_status();
}

// The mask has the data's type.
Status mask_of_numbers(OldNode& n) {
  if (!n.gives(1)) return ok_status();
  const int type = n.node()->inputs()[0]->elemType();
  onnx::Node* cast = n.follow(1, "Cast");
  cast->i_(symbol("to"), int64_t{type == 0 ? int{onnx::TensorProto::FLOAT} : type});
  return ok_status();
}

void resize_from_corner(onnx::Node* resize, const char* rounding) {
  resize->s_(symbol("coordinate_transformation_mode"), "asymmetric");
  if (rounding != nullptr) resize->s_(symbol("nearest_mode"), rounding);
}

// Returns the scales for axes that grow, or for axes that do not; 1 elsewhere.
onnx::Value* scales_of(OldNode& n, const std::optional<std::vector<double>>& known, bool grow) {
  if (!known) return n.before(grow ? "Max" : "Min", {n.node()->inputs()[1], n.floats({1})});
  std::vector<float> scales;
  for (const double scale : *known) {
    scales.push_back(static_cast<float>(grow ? std::max(scale, 1.0) : std::min(scale, 1.0)));
  }
  return n.floats(std::move(scales));
}

// Resize in opset 10, and Upsample before: x_original = x_resized / scale. The standard does not
// say how `nearest` rounds; ONNX Runtime rounds down on axes that grow and up on axes that shrink.
// https://github.com/onnx/onnx/issues/3326
Status place_from_corner(OldNode& n) {
  onnx::Value* x = n.node()->inputs()[0];
  onnx::Value* scales = n.node()->inputs()[1];
  if (n.s("mode", "nearest") != "nearest") {
    n.set_inputs({x, n.none(), scales});
    resize_from_corner(n.node(), nullptr);
    return ok_status();
  }
  const auto known = n.numbers(1);
  const auto any = [&](auto test) { return !known || std::ranges::any_of(*known, test); };
  const bool grows = any([](double s) { return s > 1; });
  const bool shrinks = any([](double s) { return s < 1; });
  if (grows && shrinks) {
    onnx::Value* larger = n.before("Resize", {x, n.none(), scales_of(n, known, true)});
    resize_from_corner(larger->node(), "floor");
    scales = scales_of(n, known, false);
    x = larger;
  }
  n.set_inputs({x, n.none(), scales});
  resize_from_corner(n.node(), shrinks ? "ceil" : "floor");
  return ok_status();
}

// Returns a number in input 0's type, as far as the file tells it.
onnx::Value* like_data(OldNode& n, double number) {
  onnx::Value* value = n.floats({static_cast<float>(number)}, true);
  const int type = n.node()->inputs()[0]->elemType();
  if (type == 0 || type == onnx::TensorProto::FLOAT) return value;
  onnx::Value* cast = n.before("Cast", {value});
  cast->node()->i_(symbol("to"), int64_t{type});
  return cast;
}

Status limits_by_input(OldNode& n) {
  Values inputs = {n.node()->inputs()[0]};
  for (const char* name : {"min", "max"}) {
    inputs.push_back(n.has(name) ? like_data(n, n.node()->f(symbol(name))) : n.none());
    n.drop(name);
  }
  n.set_inputs(inputs);
  return ok_status();
}

Status pads_by_input(OldNode& n) {
  const double value = n.has("value") ? n.node()->f(symbol("value")) : 0;
  Values inputs = {n.node()->inputs()[0], n.ints(n.node()->is(symbol("pads")))};
  if (n.s("mode", "constant") == "constant") inputs.push_back(like_data(n, value));
  n.drop("pads");
  n.drop("value");
  n.set_inputs(inputs);
  return ok_status();
}

Status ratio_by_input(OldNode& n) {
  const double ratio = n.has("ratio") ? n.node()->f(symbol("ratio")) : 0.5;
  const bool trains = n.i("training_mode", 0) != 0;
  n.drop("ratio");
  n.drop("training_mode");
  Values inputs = {n.node()->inputs()[0], n.floats({static_cast<float>(ratio)}, true)};
  if (trains) inputs.push_back(n.truth(true));
  n.set_inputs(inputs);
  return ok_status();
}

// --- opsets 12 and 20 ---

// (x_resized + 0.5) / scale rounded down equals half_pixel rounded half up, and so on.
Status place_by_half_pixel(OldNode& n) {
  if (n.s("coordinate_transformation_mode", "half_pixel") != "tf_half_pixel_for_nn") {
    return ok_status();
  }
  const std::string rounding = n.s("nearest_mode", "round_prefer_floor");
  const bool down = rounding == "floor";
  OFSDP_REJECT_IF(
      n.s("mode", "nearest") != "nearest" || (!down && rounding != "round_prefer_floor"),
      "tf_half_pixel_for_nn: expected mode nearest with nearest_mode floor or "
      "round_prefer_floor, found {} with {}",
      n.s("mode", "nearest"), rounding);
  n.node()->s_(symbol("coordinate_transformation_mode"), "half_pixel");
  n.node()->s_(symbol("nearest_mode"), down ? "round_prefer_ceil" : "ceil");
  return ok_status();
}

// Axes before `axis` are rows, all others columns.
Status rows_and_columns(OldNode& n) {
  onnx::Value* x = n.node()->inputs()[0];
  const int64_t axis = n.i("axis", 1);
  const auto rank = static_cast<int64_t>(x->sizes().size());
  n.node()->i_(symbol("axis"), int64_t{-1});
  if (axis == -1 || (x->has_sizes() && axis == rank - 1)) return ok_status();
  onnx::Value* shape = n.before("Shape", {x});
  onnx::Value* flat = n.before("Flatten", {x});
  flat->node()->i_(symbol("axis"), axis);
  n.set_inputs({flat});
  n.follow(0, "Reshape", {shape});
  return ok_status();
}

// ONNX's own adapter takes the statistics' type from the file's value_info, which may be absent.
Status scale_by_channel(OldNode& n) {
  using onnx::version_conversion::GroupNormalization_20_21;
  GroupNormalization_20_21().adapt(n.graph(), n.node());
  const int64_t type = n.i("stash_type", 0);
  if (type == 0) n.node()->i_(symbol("stash_type"), int64_t{onnx::TensorProto::FLOAT});
  return ok_status();
}

constexpr OpsetRule kOpsetRules[] = {
    {"Pad", 1, name_pads},
    {"LpPool", 1, whole_exponent},
    {"GlobalLpPool", 1, whole_exponent},
    {"Split", 1, split_by_attribute},
    {"GRU", 2, keep},
    {"Cast", 5, type_by_number},
    {"Tile", 5, join_copies},
    {"Selu", 5, short_selu_constants},
    {"Add", 6, broadcast_from_axis, true},
    {"Sub", 6, broadcast_from_axis, true},
    {"Mul", 6, broadcast_from_axis, true},
    {"Div", 6, broadcast_from_axis, true},
    {"Pow", 6, broadcast_from_axis, true},
    {"And", 6, broadcast_from_axis, true},
    {"Or", 6, broadcast_from_axis, true},
    {"Xor", 6, broadcast_from_axis, true},
    {"Equal", 6, broadcast_from_axis, true},
    {"Greater", 6, broadcast_from_axis, true},
    {"Less", 6, broadcast_from_axis, true},
    {"PRelu", 6, slope_by_channel, true},
    {"Gemm", 6, drop_broadcast},
    {"RNN", 6, drop_output_sequence},
    {"GRU", 6, drop_output_sequence},
    {"LSTM", 6, drop_output_sequence},
    {"BatchNormalization", 6, statistics_by_outputs},
    {"Dropout", 6, mark_dropout},
    {"Upsample", 6, scale_every_axis},
    {"BatchNormalization", 8, channels_of_elements},
    {"Scan", 8, refuse_batch_axis},
    {"Dropout", 9, mask_of_numbers},
    {"Upsample", 9, resize_by_scales},
    {"Resize", 10, place_from_corner},
    {"Clip", 10, limits_by_input},
    {"Pad", 10, pads_by_input},
    {"Dropout", 11, ratio_by_input},
    {"Resize", 12, place_by_half_pixel},
    {"Softmax", 12, rows_and_columns},
    {"LogSoftmax", 12, rows_and_columns},
    {"Hardmax", 12, rows_and_columns},
    {"GroupNormalization", 20, scale_by_channel},
};

}  // namespace

const OpsetRule* find_opset_rule(const std::string& op, int from) {
  const auto* const found = std::ranges::find_if(
      kOpsetRules, [&](const OpsetRule& rule) { return rule.from == from && op == rule.op; });
  return found == std::end(kOpsetRules) ? nullptr : found;
}

bool rank_matters(const std::string& op, int from) {
  return std::ranges::any_of(kOpsetRules, [&](const OpsetRule& rule) {
    return rule.by_rank && rule.from >= from && op == rule.op;
  });
}

}  // namespace ofsdp::importer

#include "importer/dialects/training_info/training_info.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>

#include "importer/dialects/training_info/rules_source.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

using Names = std::set<std::string>;

// Adds all names that a node reads, also in subgraphs.
void collect_reads(const onnx::NodeProto& node, std::vector<std::string>& names) {
  for (const std::string& name : node.input()) {
    if (!name.empty()) names.push_back(name);
  }
  for (const auto& attribute : node.attribute()) {
    for (const auto& inner : attribute.g().node()) collect_reads(inner, names);
    for (const auto& output : attribute.g().output()) names.push_back(output.name());
  }
}

std::string text_of(const onnx::NodeProto& node, const char* name) {
  const auto* attribute = find_attribute(node, name);
  return attribute == nullptr ? "" : attribute->s();
}

std::vector<std::string> strings_of(const onnx::NodeProto& node, const char* name) {
  const auto* attribute = find_attribute(node, name);
  if (attribute == nullptr) return {};
  return {attribute->strings().begin(), attribute->strings().end()};
}

// ai.onnx.preview.training's Gradient: the gradients of `y` with respect to each tensor in `xs`, at
// the values of xs and zs, the node's inputs.
struct GradientNode {
  explicit GradientNode(const onnx::NodeProto& node)
      : y(text_of(node, "y")), xs(strings_of(node, "xs")), zs(strings_of(node, "zs")) {}

  std::string y;
  std::vector<std::string> xs, zs;
};

// Returns "node 'grads' (Gradient)".
std::string label(const onnx::NodeProto& node) {
  const bool named = !node.name().empty() || node.output().empty();
  return format_text("node '{}' ({})", named ? node.name() : node.output(0), node.op_type());
}

bool is_gradient(const onnx::NodeProto& node) {
  return node.domain() == kTrainingDomain && node.op_type() == "Gradient";
}

// Checks that the node has `gradient`'s inputs and outputs.
Status check_operands(const onnx::NodeProto& node, const GradientNode& gradient) {
  std::vector<std::string> all = gradient.xs;
  all.insert(all.end(), gradient.zs.begin(), gradient.zs.end());
  OFSDP_REJECT_IF(!std::ranges::equal(all, node.input()),
                  "{}: expected the tensors of xs and zs ({}) as inputs, found ({}): a "
                  "gradient at other values is not computed",
                  label(node), joined(all, ", "), joined(node.input(), ", "));
  if (static_cast<size_t>(node.output_size()) <= gradient.xs.size()) return {};
  return input_error("{}: expected at most {} outputs, as xs has, found {}", label(node),
                     gradient.xs.size(), node.output_size());
}

class Splitter {
 public:
  Splitter(const OnnxFile& file, const onnx::ModelProto& model) : file_(file), model_(model) {}

  Result<SplitTraining> run() {
    index_main();
    for (int k = 0; k < model_.training_info_size(); ++k) {
      OFSDP_RETURN_IF_ERROR(index_algorithm(k).with_prefix(prefix(k)));
    }
    OFSDP_REJECT_IF(split_.loss.empty(), "{}: training_info: expected a Gradient node, found none",
                    file_.path());
    OFSDP_RETURN_IF_ERROR(find_forward().with_prefix(prefix(loss_instance_)));
    OFSDP_RETURN_IF_ERROR(build_forward().with_prefix(prefix(loss_instance_)));
    OFSDP_RETURN_IF_ERROR(
        build_update_model(file_, model_, algorithms_, read_, split_).with_prefix(file_.path()));
    if (!split_.trained.empty()) return std::move(split_);
    return input_error("{}: training_info: no update_binding for any of the tensors of Gradient",
                       file_.path());
  }

 private:
  std::string prefix(int k) const { return format_text("{}: training_info[{}]", file_.path(), k); }

  void index_main() {
    for (const auto& node : model_.graph().node()) {
      for (const std::string& output : node.output()) main_[output] = &node;
    }
    for (const auto& source : file_.initializers()) weights_.insert(source.name);
    for (const auto& input : model_.graph().input()) known_.insert(input.name());
    for (const auto& tensor : model_.graph().initializer()) known_.insert(tensor.name());
  }

  Status index_algorithm(int k) {
    const onnx::GraphProto& graph = model_.training_info(k).algorithm();
    AlgorithmGraph algorithm{&graph, {}, {}};
    for (const auto& node : graph.node()) {
      for (const std::string& output : node.output()) {
        if (output.empty()) continue;
        OFSDP_REJECT_IF(main_.contains(output) || !algorithm.makers.emplace(output, &node).second,
                        "{}: '{}' is made a second time", label(node), output);
      }
    }
    for (const auto& node : graph.node()) {
      if (is_gradient(node)) OFSDP_RETURN_IF_ERROR(add_gradient(k, node, algorithm));
    }
    algorithms_.push_back(std::move(algorithm));
    return {};
  }

  Status add_gradient(int k, const onnx::NodeProto& node, AlgorithmGraph& algorithm) {
    const GradientNode gradient(node);
    const std::string& y = gradient.y;
    OFSDP_REJECT_IF(!split_.loss.empty() && loss_instance_ != k,
                    "{}: a second pass over the data: expected Gradient in training_info[{}] "
                    "alone",
                    label(node), loss_instance_);
    OFSDP_REJECT_IF(!split_.loss.empty() && split_.loss != y,
                    "{}: expected y '{}' as the Gradient before it has, found '{}'", label(node),
                    split_.loss, y);
    split_.loss = y;
    loss_instance_ = k;
    OFSDP_REJECT_IF(!main_.contains(y) && !algorithm.makers.contains(y),
                    "{}: y names '{}', which no node makes", label(node), y);
    OFSDP_RETURN_IF_ERROR(check_operands(node, gradient));
    for (int i = 0; i < node.output_size(); ++i) {
      const std::string& x = gradient.xs[static_cast<size_t>(i)];
      OFSDP_REJECT_IF(
          !weights_.contains(x),
          "{}: xs names '{}': expected a floating-point initializer of the model's graph",
          label(node), x);
      if (!node.output(i).empty()) algorithm.gradients[node.output(i)] = x;
    }
    gradient_nodes_.push_back(&node);
    return {};
  }

  // Walks back from y over the nodes that make it.
  Status find_forward() {
    const AlgorithmGraph& algorithm = algorithms_[static_cast<size_t>(loss_instance_)];
    std::vector<std::string> todo{split_.loss};
    while (!todo.empty()) {
      const std::string name = std::move(todo.back());
      todo.pop_back();
      if (!read_.insert(name).second) continue;
      const auto inside = algorithm.makers.find(name);
      const auto outside = main_.find(name);
      const onnx::NodeProto* node = inside != algorithm.makers.end() ? inside->second
                                    : outside != main_.end()         ? outside->second
                                                                     : nullptr;
      if (node == nullptr) continue;
      OFSDP_REJECT_IF(node->domain() == kTrainingDomain,
                      "{}: '{}' depends on it: expected a loss without it", label(*node),
                      split_.loss);
      if (inside != algorithm.makers.end()) forward_.insert(node);
      collect_reads(*node, todo);
    }
    return check_paths(algorithm);
  }

  Status check_paths(const AlgorithmGraph& algorithm) const {
    Names inside;
    for (const auto& tensor : algorithm.graph->initializer()) inside.insert(tensor.name());
    for (const auto& input : algorithm.graph->input()) inside.insert(input.name());
    for (const onnx::NodeProto* node : gradient_nodes_) {
      const GradientNode gradient(*node);
      for (const std::string& x : gradient.xs) {
        OFSDP_REJECT_IF(!read_.contains(x), "{}: xs names '{}', which '{}' does not depend on",
                        label(*node), x, split_.loss);
      }
      for (const std::string& z : gradient.zs) {
        const bool there = main_.contains(z) || weights_.contains(z) || known_.contains(z) ||
                           inside.contains(z) || algorithm.makers.contains(z);
        if (!there) return input_error("{}: zs names '{}', which nothing makes", label(*node), z);
      }
    }
    return {};
  }

  Status build_forward() {
    split_.forward = model_;
    split_.forward.clear_training_info();
    onnx::GraphProto& graph = *split_.forward.mutable_graph();
    const onnx::GraphProto& algorithm = *algorithms_[static_cast<size_t>(loss_instance_)].graph;
    for (const auto& tensor : algorithm.initializer()) {
      if (!read_.contains(tensor.name())) continue;
      OFSDP_RETURN_IF_ERROR(add_constant(tensor, graph));
      known_.insert(tensor.name());
    }
    for (const auto& input : algorithm.input()) {
      if (read_.contains(input.name()) && known_.insert(input.name()).second)
        *graph.add_input() = input;
    }
    for (const auto& node : algorithm.node()) {
      if (forward_.contains(&node)) *graph.add_node() = node;
    }
    const bool output = std::ranges::any_of(
        graph.output(), [&](const auto& info) { return info.name() == split_.loss; });
    if (!output) *graph.add_output() = loss_info(algorithm);
    return {};
  }

  // The skeleton has no data for large initializers.
  Status add_constant(const onnx::TensorProto& tensor, onnx::GraphProto& graph) const {
    onnx::TensorProto& added = *graph.add_initializer();
    added = tensor;
    for (const AlgorithmTensor& known : file_.contents().algorithm_tensors) {
      const Initializer& source = known.initializer;
      if (known.training_info != loss_instance_ || source.name != tensor.name()) continue;
      if (!is_floating(source.dtype) || source.shape.numel() <= kSmallNumel) continue;
      std::vector<float> values(static_cast<size_t>(source.shape.numel()));
      OFSDP_RETURN_IF_ERROR(file_.read(source, 0, values));
      added.set_data_type(onnx::TensorProto::FLOAT);
      added.set_raw_data(values.data(), values.size() * sizeof(float));
    }
    return {};
  }

  onnx::ValueInfoProto loss_info(const onnx::GraphProto& algorithm) const {
    for (const auto* list :
         {&algorithm.output(), &algorithm.value_info(), &model_.graph().value_info()}) {
      for (const auto& info : *list) {
        if (info.name() == split_.loss) return info;
      }
    }
    return value_info(split_.loss, {DType::kFloat32, Shape{}});
  }

  const OnnxFile& file_;
  const onnx::ModelProto& model_;
  std::map<std::string, const onnx::NodeProto*> main_;  // each value's maker in the model's graph
  Names weights_, known_, read_;                        // read_: names that the loss depends on
  std::vector<AlgorithmGraph> algorithms_;
  std::vector<const onnx::NodeProto*> gradient_nodes_;
  std::set<const onnx::NodeProto*> forward_;  // the algorithm's
  int loss_instance_ = 0;
  SplitTraining split_;
};

}  // namespace

bool has_training_info(const onnx::ModelProto& model) {
  return std::ranges::any_of(model.training_info(), [](const auto& info) {
    return info.algorithm().node_size() > 0 || info.update_binding_size() > 0;
  });
}

Result<SplitTraining> split_training_info(const OnnxFile& file, const onnx::ModelProto& model) {
  return Splitter(file, model).run();
}

namespace {

constexpr int kMinIrVersion = 8;

void collect_names(const onnx::GraphProto& graph, std::set<std::string>& names) {
  for (const auto& input : graph.input()) names.insert(input.name());
  for (const auto& tensor : graph.initializer()) names.insert(tensor.name());
  for (const auto& node : graph.node()) {
    names.insert(node.output().begin(), node.output().end());
    for (const auto& attribute : node.attribute()) collect_names(attribute.g(), names);
  }
}

}  // namespace

struct AlgorithmBuilder::State {
  onnx::TrainingInfoProto info;
  std::set<std::string> taken;
  Names inputs;
  bool old_ir = false, has_domain = false;

  onnx::GraphProto& graph() { return *info.mutable_algorithm(); }
};

AlgorithmBuilder::AlgorithmBuilder() : state_(std::make_unique<State>()) {}
AlgorithmBuilder::AlgorithmBuilder(AlgorithmBuilder&&) noexcept = default;
AlgorithmBuilder::~AlgorithmBuilder() = default;

Result<AlgorithmBuilder> AlgorithmBuilder::make(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  OFSDP_REJECT_IF(has_training_info(model), "{}: expected a model without training_info, found {}",
                  file.path(), model.training_info_size());
  if (const int opset = version_of(model.opset_import(), ""); opset < kMinOpset) {
    return input_error("{}: expected opset {} or newer, found {}", file.path(), kMinOpset, opset);
  }
  AlgorithmBuilder made;
  State& state = *made.state_;
  collect_names(model.graph(), state.taken);
  std::set<std::string> initializers;
  for (const auto& tensor : model.graph().initializer()) initializers.insert(tensor.name());
  for (const Initializer& source : file.initializers()) initializers.insert(source.name);
  state.taken.insert(initializers.begin(), initializers.end());
  for (const auto& input : model.graph().input()) {
    if (!initializers.contains(input.name())) state.inputs.push_back(input.name());
  }
  state.old_ir = model.ir_version() < kMinIrVersion;
  state.has_domain = version_of(model.opset_import(), kTrainingDomain) > 0;
  state.graph().set_name("algorithm");
  return made;
}

std::string AlgorithmBuilder::fresh(const std::string& wished) {
  std::string name = wished;
  for (int i = 1; !state_->taken.insert(name).second; ++i) name = format_text("{}.{}", wished, i);
  return name;
}

AlgorithmBuilder::Names AlgorithmBuilder::add(const std::string& op, const Names& inputs,
                                              const Attributes& attributes, const Names& wished,
                                              const std::string& domain) {
  onnx::NodeProto& node = *state_->graph().add_node();
  node.set_op_type(op);
  node.set_domain(domain);
  Names outputs;
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& name : wished) outputs.push_back(fresh(name));
  for (const std::string& output : outputs) node.add_output(output);
  node.set_name(format_text("{}_{}", op, outputs[0]));
  for (const auto& [name, value] : attributes.all()) add_attribute(node, name, value);
  return outputs;
}

std::string AlgorithmBuilder::scalar(const std::string& wished, DType dtype, double value) {
  const std::string name = fresh(wished);
  const TensorDesc desc{dtype, Shape{}};
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles({&value, 1}, desc, bytes.data());
  *state_->graph().add_initializer() = tensor_proto(name, desc, bytes.data());
  return name;
}

std::string AlgorithmBuilder::ints(const std::string& wished, const std::vector<int64_t>& values) {
  const std::string name = fresh(wished);
  const TensorDesc desc{DType::kInt64, Shape{static_cast<int64_t>(values.size())}};
  *state_->graph().add_initializer() = tensor_proto(name, desc, values.data());
  return name;
}

std::string AlgorithmBuilder::zeros(const std::string& wished, const Shape& shape) {
  const std::string name = fresh(wished);
  const TensorDesc desc{DType::kFloat32, shape};
  const std::vector<std::byte> bytes(desc.bytes());
  *state_->graph().add_initializer() = tensor_proto(name, desc, bytes.data());
  return name;
}

void AlgorithmBuilder::input(const std::string& name, DType dtype, const Shape& row) {
  state_->taken.insert(name);
  onnx::ValueInfoProto& info = *state_->graph().add_input();
  info = value_info(name, {dtype, row});
  auto& shape = *info.mutable_type()->mutable_tensor_type()->mutable_shape();
  onnx::TensorShapeProto whole;
  whole.add_dim();  // any size: the batch
  whole.MergeFrom(shape);
  shape = whole;
  state_->inputs.push_back(name);
}

void AlgorithmBuilder::output(const std::string& name, const TensorDesc& desc) {
  *state_->graph().add_output() = value_info(name, desc);
}

void AlgorithmBuilder::bind(const std::string& initializer, const std::string& value,
                            const TensorDesc& desc) {
  output(value, desc);
  auto& binding = *state_->info.add_update_binding();
  binding.set_key(initializer);
  binding.set_value(value);
}

const AlgorithmBuilder::Names& AlgorithmBuilder::model_inputs() const { return state_->inputs; }

std::string AlgorithmBuilder::finish() const {
  onnx::ModelProto more;
  if (state_->old_ir) more.set_ir_version(kMinIrVersion);
  if (!state_->has_domain) {
    auto& import = *more.add_opset_import();
    import.set_domain(kTrainingDomain);
    import.set_version(1);
  }
  *more.add_training_info() = state_->info;
  return more.SerializeAsString();
}

namespace {

// The algorithm's own initializers come first, as in update bindings.
Result<InitialBinding> binding_of(const OnnxFile& file, int index, const std::string& key,
                                  const std::string& value) {
  for (const AlgorithmTensor& tensor : file.contents().algorithm_tensors) {
    if (tensor.training_info == index && tensor.initializer.name == key)
      return InitialBinding{tensor.initializer, index, value};
  }
  for (const Initializer& source : file.initializers()) {
    if (source.name == key) return InitialBinding{source, -1, value};
  }
  return input_error(
      "{}: training_info[{}]: initialization_binding of '{}' to '{}': expected an initializer as "
      "its key, found none",
      file.path(), index, key, value);
}

}  // namespace

Result<std::vector<Initialization>> read_initializations(const OnnxFile& file) {
  std::vector<Initialization> made;
  onnx::ModelProto model;
  if (!model.ParseFromString(file.skeleton())) return made;  // import_onnx reports the error
  for (int i = 0; i < model.training_info_size(); ++i) {
    const onnx::TrainingInfoProto& info = model.training_info(i);
    if (info.initialization_binding_size() == 0) continue;
    onnx::ModelProto alone;
    alone.set_ir_version(model.ir_version());
    *alone.mutable_opset_import() = model.opset_import();
    *alone.mutable_functions() = model.functions();
    *alone.mutable_graph() = info.initialization();
    if (alone.graph().name().empty()) alone.mutable_graph()->set_name("initialization");
    const std::string name = format_text("{}: training_info[{}]: initialization", file.path(), i);
    made.push_back({OnnxFile::of_model(name, alone.SerializeAsString()), {}});
    for (const auto& binding : info.initialization_binding()) {
      OFSDP_ASSIGN_OR_RETURN(InitialBinding bound,
                             binding_of(file, i, binding.key(), binding.value()));
      made.back().bindings.push_back(std::move(bound));
    }
  }
  return made;
}

}  // namespace ofsdp::importer

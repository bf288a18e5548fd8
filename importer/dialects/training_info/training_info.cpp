#include "importer/dialects/training_info/training_info.h"

#include <algorithm>

#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

using Names = std::set<std::string>;

// Adds all names that a node reads, those of its subgraphs included.
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

// Gradient of ai.onnx.preview.training: the gradients of `y` with respect to each of `xs`, at the
// values of the tensors xs and zs, which are the node's inputs.
struct GradientNode {
  explicit GradientNode(const onnx::NodeProto& node)
      : y(text_of(node, "y")), xs(strings_of(node, "xs")), zs(strings_of(node, "zs")) {}

  std::string y;
  std::vector<std::string> xs, zs;
};

// "node 'grads' (Gradient)"
std::string label(const onnx::NodeProto& node) {
  const bool named = !node.name().empty() || node.output().empty();
  return format_text("node '{}' ({})", named ? node.name() : node.output(0), node.op_type());
}

bool is_gradient(const onnx::NodeProto& node) {
  return node.domain() == kTrainingDomain && node.op_type() == "Gradient";
}

// Checks that inputs and outputs of the node are those of `gradient`.
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

  // Walks back from y over the nodes that it depends on.
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

  // The skeleton has no data of large initializers.
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
  std::map<std::string, const onnx::NodeProto*> main_;  // who makes what in the model's graph
  Names weights_, known_, read_;                        // read_: what the loss depends on
  std::vector<AlgorithmGraph> algorithms_;
  std::vector<const onnx::NodeProto*> gradient_nodes_;
  std::set<const onnx::NodeProto*> forward_;  // of the algorithm
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

}  // namespace ofsdp::importer

// --add-head N[:NAME] puts a Linear with N outputs on the prediction:
//
//   NAME = prediction NAME.weight + NAME.bias
//
// NAME becomes an output of the graph, next to the others. Weight [in, N] and bias are drawn as
// torch.nn.Linear draws them, from the seed, in the type of the prediction.
//
// Errors: kInput.
#include <onnx/defs/schema.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>

#include "importer/edit/model_editor.h"
#include "importer/edit/model_edits.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

class HeadAddition {
 public:
  HeadAddition(ModelEditor& editor, const AddedHead& head, uint64_t seed)
      : editor_(editor), head_(head), seed_(seed) {}

  Status run(const std::string& given) {
    OFSDP_RETURN_IF_ERROR(check_names());
    OFSDP_ASSIGN_OR_RETURN(const onnx::ValueInfoProto on, prediction(given));
    const auto& type = on.type().tensor_type();
    const int rank = type.shape().dim_size();
    const int64_t width = rank == 0 ? 0 : type.shape().dim(rank - 1).dim_value();
    const DType dtype = dtype_from_onnx_number(type.elem_type());
    OFSDP_REJECT_IF(!is_floating(dtype) || rank < 2 || width <= 0,
                    "{}: expected floats [..., width] with a known width in '{}' of {}, found {} "
                    "axes and width {}",
                    flag(), on.name(), editor_.path(), rank,
                    width > 0 ? std::to_string(width) : "unknown");
    add(on, dtype, width);
    return {};
  }

 private:
  std::string flag() const { return format_text("--add-head {}:{}", head_.outputs, head_.name); }

  Status check_names() const {
    const onnx::GraphProto& graph = editor_.graph();
    const auto taken = [&](const std::string& name) {
      const auto has = [&](const auto& list) {
        return std::ranges::any_of(list, [&](const auto& one) { return one.name() == name; });
      };
      return editor_.weight(name) != nullptr || has(graph.input()) || has(graph.initializer()) ||
             ProtoUses(graph).maker(name) >= 0;
    };
    for (const char* end : {"", ".weight", ".bias", ".product"}) {
      OFSDP_REJECT_IF(taken(head_.name + end),
                      "{}: {} has a value '{}' already: expected --add-head N:NAME with another "
                      "name",
                      flag(), editor_.path(), head_.name + end);
    }
    return {};
  }

  // Returns the named value, or the first output with floats of one axis or more.
  Result<onnx::ValueInfoProto> prediction(const std::string& given) const {
    onnx::ModelProto model = editor_.model();
    for (const Initializer& weight : editor_.weights()) {  // the editor has them apart
      *model.mutable_graph()->add_input() = value_info(weight.name, {weight.dtype, weight.shape});
    }
    try {
      onnx::shape_inference::InferShapes(model, onnx::OpSchemaRegistry::Instance(),
                                         onnx::ShapeInferenceOptions{false, 0, false});
    } catch (const std::exception&) {
      // The shapes that the file has and those of the nodes before the odd one stay.
    }
    const auto named = [&](const onnx::ValueInfoProto& info) {
      const auto& type = info.type().tensor_type();
      const bool fits = is_floating(dtype_from_onnx_number(type.elem_type())) &&
                        (!type.has_shape() || type.shape().dim_size() > 0);
      return given.empty() ? fits : info.name() == given;
    };
    const auto& outputs = model.graph().output();
    if (const auto found = std::ranges::find_if(outputs, named); found != outputs.end()) {
      return *found;
    }
    const auto& inner = model.graph().value_info();
    const auto found = std::ranges::find_if(inner, named);
    if (!given.empty() && found != inner.end()) return *found;
    return input_error("{}: expected a value of known shape in {}, found none{}", flag(),
                       editor_.path(), given.empty() ? "" : format_text(" named '{}'", given));
  }

  void add(const onnx::ValueInfoProto& on, DType dtype, int64_t width) {
    const std::string weight = head_.name + ".weight", bias = head_.name + ".bias";
    const std::string product = head_.name + ".product";
    editor_.add_weight(weight, dtype, Shape{width, head_.outputs}, drawn(weight, width));
    editor_.add_weight(bias, dtype, Shape{head_.outputs}, drawn(bias, width));
    add_node("MatMul", on.name(), weight, product);
    add_node("Add", product, bias, head_.name);
    onnx::ValueInfoProto& output = *editor_.graph().add_output();
    output = on;
    output.set_name(head_.name);
    auto& shape = *output.mutable_type()->mutable_tensor_type()->mutable_shape();
    shape.mutable_dim(shape.dim_size() - 1)->set_dim_value(head_.outputs);
  }

  void add_node(const char* op, const std::string& a, const std::string& b, const std::string& y) {
    onnx::NodeProto& node = *editor_.graph().add_node();
    node.set_op_type(op);
    node.set_name(format_text("/{}/{}", head_.name, op));
    node.add_input(a);
    node.add_input(b);
    node.add_output(y);
  }

  std::shared_ptr<const ValueSource> drawn(const std::string& name, int64_t width) const {
    return std::make_shared<LinearDraw>(name, seed_, width);
  }

  ModelEditor& editor_;
  const AddedHead& head_;
  uint64_t seed_;
};

}  // namespace

Status add_head(ModelEditor& editor, const AddedHead& head, const std::string& prediction,
                uint64_t seed) {
  return HeadAddition(editor, head, seed).run(prediction);
}

}  // namespace ofsdp::importer

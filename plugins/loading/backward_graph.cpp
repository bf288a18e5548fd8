// A plug-in's backward as known operators: ofsdp_graph in front of a GradBuilder.
#include <algorithm>
#include <set>

#include "plugins/loading/operators.h"

namespace ofsdp::plugins {
namespace {

// The `context` of the ofsdp_graph points to this. A first mistake of the plug-in ends in `status`;
// after it every function gives none.
struct GraphCall {
  const PluginOperator& op;
  GradBuilder& builder;
  std::set<int> refs = {};
  std::set<size_t> given = {};
  Status status = {};

  int32_t hand(Ref ref) {
    if (ref) refs.insert(ref.id);
    return ref.id;
  }
  bool wrong(Status why) {
    if (status.ok()) status = std::move(why);
    return true;
  }
  // Is `ref` no value that the plug-in was handed?
  bool bad(int32_t ref, const char* function) {
    if (!status.ok()) return true;
    return !refs.contains(ref) && wrong(input_error("the plug-in's build_backward passes {} to {}, "
                                                    "which is no value of the graph",
                                                    ref, function));
  }
};

GraphCall& call_of(const ofsdp_graph* graph) { return *static_cast<GraphCall*>(graph->context); }

int32_t input(const ofsdp_graph* graph, size_t i) {
  GraphCall& call = call_of(graph);
  return i < call.builder.num_inputs() ? call.hand(call.builder.input(i)) : 0;
}

int32_t output(const ofsdp_graph* graph, size_t i) {
  GraphCall& call = call_of(graph);
  return i < call.op.outputs.size() ? call.hand(call.builder.output(i)) : 0;
}

int32_t grad_output(const ofsdp_graph* graph, size_t i) {
  GraphCall& call = call_of(graph);
  return i < call.op.outputs.size() ? call.hand(call.builder.grad_output(i)) : 0;
}

int32_t needs_grad(const ofsdp_graph* graph, size_t i) {
  const GradBuilder& builder = call_of(graph).builder;
  return i < builder.num_inputs() && builder.needs_grad(i) ? 1 : 0;
}

int32_t emit(const ofsdp_graph* graph, const char* op, const int32_t* inputs, size_t num_inputs,
             const ofsdp_attribute* const* attributes, size_t num_attributes, int32_t* outputs,
             size_t num_outputs) {
  GraphCall& call = call_of(graph);
  std::fill(outputs, outputs + num_outputs, 0);
  if (std::ranges::find(*call.op.known, op) == call.op.known->end()) {
    call.wrong(
        input_error("the plug-in's build_backward uses '{}', which is no known operator", op));
    return OFSDP_ERROR;
  }
  std::vector<Ref> refs;
  for (size_t i = 0; i < num_inputs; ++i) {
    if (inputs[i] != 0 && call.bad(inputs[i], "emit")) return OFSDP_ERROR;
    refs.push_back({inputs[i]});
  }
  Attributes values;
  for (size_t i = 0; i < num_attributes; ++i) {
    const ofsdp_attribute attribute = whole(attributes[i]);
    values.set(attribute.name, attribute_of_plugin(attribute));
  }
  const std::vector<Ref> made = call.builder.emit(op, refs, values, num_outputs);
  for (size_t i = 0; i < num_outputs; ++i) outputs[i] = call.hand(made[i]);
  return OFSDP_OK;
}

int32_t scalar(const ofsdp_graph* graph, int32_t dtype, double value) {
  GraphCall& call = call_of(graph);
  const DType ours = dtype_of_number(dtype);
  if (!is_floating(ours)) {
    call.wrong(input_error("the plug-in's build_backward asks for a scalar of type {}", dtype));
    return 0;
  }
  return call.hand(call.builder.scalar(ours, value));
}

int32_t ints(const ofsdp_graph* graph, const int64_t* values, size_t count) {
  GraphCall& call = call_of(graph);
  return call.hand(call.builder.ints({values, values + count}));
}

int32_t sum_to(const ofsdp_graph* graph, int32_t grad, int32_t target) {
  GraphCall& call = call_of(graph);
  if (call.bad(grad, "sum_to") || call.bad(target, "sum_to")) return 0;
  return call.hand(call.builder.sum_to({grad}, {target}));
}

void set_grad(const ofsdp_graph* graph, size_t i, int32_t grad) {
  GraphCall& call = call_of(graph);
  if (needs_grad(graph, i) == 0 || call.bad(grad, "set_grad")) return;
  const TensorDesc& wanted = call.builder.desc(call.builder.input(i));
  const TensorDesc& found = call.builder.desc({grad});
  if (found != wanted) {
    call.wrong(input_error("the plug-in's gradient of input '{}' is {}, expected {}",
                           call.op.inputs[i].name, found.text(), wanted.text()));
    return;
  }
  if (!call.given.insert(i).second) {
    call.wrong(
        input_error("the plug-in sets the gradient of input '{}' twice", call.op.inputs[i].name));
    return;
  }
  call.builder.set_grad(i, {grad});
}

// The descs of `count` values, the i-th of which is (b.*value)(i).
std::vector<TensorDesc> descs_of(const GradBuilder& b, size_t count,
                                 Ref (GradBuilder::*value)(size_t) const) {
  std::vector<TensorDesc> descs(count);
  for (size_t i = 0; i < count; ++i) {
    if (const Ref ref = (b.*value)(i)) descs[i] = b.desc(ref);
  }
  return descs;
}

Status missing_gradient(const GraphCall& call) {
  for (size_t i = 0; i < call.builder.num_inputs(); ++i) {
    const ofsdp_operand& input = call.op.inputs[i];
    if (!call.builder.needs_grad(i) || (input.flags & OFSDP_NO_GRADIENT) != 0) continue;
    if (call.given.contains(i)) continue;
    return input_error("the plug-in's build_backward gives no gradient of input '{}'", input.name);
  }
  return {};
}

}  // namespace

void build_backward(const PluginOperatorPtr& op, GradBuilder& builder) {
  PluginNode node(op, builder.attributes(),
                  descs_of(builder, builder.num_inputs(), &GradBuilder::input),
                  descs_of(builder, op->outputs.size(), &GradBuilder::grad_output));
  GraphCall call{*op, builder};
  const ofsdp_graph graph = {.struct_size = sizeof(ofsdp_graph),
                             .host = op->host,
                             .context = &call,
                             .node = &node.node(),
                             .input = input,
                             .output = output,
                             .grad_output = grad_output,
                             .needs_grad = needs_grad,
                             .emit = emit,
                             .scalar = scalar,
                             .ints = ints,
                             .sum_to = sum_to,
                             .set_grad = set_grad};
  Status status = node.call(ErrorKind::kInput, "build_backward",
                            [&] { return op->def.build_backward(&graph); });
  if (!call.status.ok()) status = std::move(call.status);
  if (status.ok()) status = missing_gradient(call);
  if (!status.ok()) builder.fail(std::move(status));
}

}  // namespace ofsdp::plugins

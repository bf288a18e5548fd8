#include "importer/dialects/training_info/state_places.h"

namespace ofsdp::importer {

Result<StatePlace> find_state(const OnnxFile& file, const UpdateState& state) {
  const auto& weights = file.initializers();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (state.training_info < 0 && weights[i].name == state.initializer) return StatePlace{true, i};
  }
  const auto& tensors = file.contents().algorithm_tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].training_info == state.training_info &&
        tensors[i].initializer.name == state.initializer) {
      return StatePlace{false, i};
    }
  }
  return input_error(
      "'{}': expected an initializer of the algorithm, or a floating-point one of the model's "
      "graph, found neither",
      state.initializer);
}

const Initializer& state_source(const OnnxFile& file, const StatePlace& place) {
  if (place.in_model) return file.initializers()[place.index];
  return file.contents().algorithm_tensors[place.index].initializer;
}

namespace {

Status check_place(const OnnxFile& file, const UpdateState& state) {
  OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(file, state));
  const Initializer& source = state_source(file, place);
  const bool list = source.encoding == Initializer::Encoding::kList && is_floating(source.dtype);
  if (state.next == 0 || place.in_model || !list) return {};
  return input_error("'{}': expected its {} as raw_data, found a list", state.initializer,
                     dtype_name(source.dtype));
}

}  // namespace

Status check_places(const OnnxFile& file, const UpdateRules& rules) {
  for (const UpdateState& scalar : rules.scalars) OFSDP_RETURN_IF_ERROR(check_place(file, scalar));
  for (const UpdateRule& rule : rules.rules) {
    for (const UpdateState& state : rule.states) OFSDP_RETURN_IF_ERROR(check_place(file, state));
  }
  return {};
}

}  // namespace ofsdp::importer

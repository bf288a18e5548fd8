// Where the states of an update (importer/dialects/training_info/update_rules.h) lie in the model file, to read them and to
// write their trained values.
//
// Ownership: values; the file outlives references. Threads: any. Errors: kInput naming the
// initializer.
#pragma once

#include "importer/dialects/training_info/update_rules.h"

namespace ofsdp::importer {

// Where a state's elements are in the file: which of its initializers, or of its algorithm_tensors.
struct StatePlace {
  bool in_model = false;
  size_t index = 0;
};
Result<StatePlace> find_state(const OnnxFile& file, const UpdateState& state);
const Initializer& state_source(const OnnxFile& file, const StatePlace& place);

// What the trained file will have has to have a place in it.
Status check_places(const OnnxFile& file, const UpdateRules& rules);

}  // namespace ofsdp::importer

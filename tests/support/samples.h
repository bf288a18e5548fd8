// Sample cases: the problems on which every operator is tested, read from tests/ops/samples/*.txt.
//
//   Conv                       one or several operators that share the rows below; or a list's name
//     image float32[2,3,7,6] float32[4,3,3,3] - strides=[2,2] #1={0,2} known:1 outputs:2
//     use LIST suffix:_relu activation="relu"      the rows of a list, each with further words
//
// A row is a name, then inputs ("-": absent), then in any order:
//   name=value       attribute: 1 an integer, 1.0 a float, "text", [a list], int64[2]{3,4} a tensor
//   #i={0,2}         input i holds these numbers, again and again
//   #i=function(a)   input i holds the default values changed by that function (see samples.cpp)
//   known:i,j        inputs with values that the planner knows (shapes, axes)
//   outputs:n        default 1
//   gradient:no      no finite differences, although the operator has a gradient
//   tolerance:t      for float32 implementations, relative to the largest magnitude; default 2e-5
// A line that begins with # is a comment.
//
// Threads: any. Errors: a row that does not parse throws std::runtime_error, which names operator
// and row (`use` without a list: file and line), and so fails the test.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

// One problem. Inputs are normal(0, 1), integers and masks as make_values says (op_values.h).
struct SampleCase {
  std::string name;
  Attributes attributes = {};
  std::vector<TensorDesc> inputs = {};
  // Changes an input's default values: (index, values).
  std::function<void(size_t, std::vector<double>&)> fill = {};
  std::vector<size_t> constant_inputs = {};
  size_t num_outputs = 1;
  bool check_grad = true;
  double tolerance = 2e-5;
};

// An operator's cases, by its full name ("Conv", "ofsdp.ReluGrad"); none: it has no rows.
std::vector<SampleCase> samples_of(const OpDef& op);

}  // namespace ofsdp::testing

namespace ofsdp {
using testing::SampleCase;
}

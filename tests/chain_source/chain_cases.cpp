#include "tests/chain_source/chain_cases.h"

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

namespace ofsdp::testing {
namespace {

ChainCase case_of(const OpDef& op, const SampleCase& sample, DType dtype, bool without_second) {
  ChainCase made;
  made.name = op.name + "_" + sample.name + "_" + std::string(dtype_name(dtype));
  made.problem.attributes = sample.attributes;
  made.problem.inputs = sample.inputs;
  for (TensorDesc& desc : made.problem.inputs) desc.dtype = dtype;
  made.problem.constants.resize(sample.inputs.size());
  made.problem.outputs =
      *op.infer({sample.attributes, made.problem.inputs, made.problem.constants, {}});
  made.problem.outputs.resize(sample.num_outputs);
  if (without_second) made.name += "_without_second";
  if (without_second) made.problem.outputs[1] = {};
  made.program = cuda::chain_program(made.problem);
  for (size_t i = 0; i < sample.num_outputs; ++i) made.wanted.push_back(made.problem.has_out(i));
  return made;
}

}  // namespace

std::vector<ChainCase> chain_cases() {
  const Registry registry = make_registry();
  std::vector<ChainCase> list;
  for (const char* name : {"ofsdp.Chain", "ofsdp.ChainGrad"}) {
    const OpDef& op = registry.get(name);
    for (const SampleCase& sample : testing::samples_of(op)) {
      for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        ChainCase made = case_of(op, sample, dtype, false);
        if (made.program.numel == 0) continue;
        list.push_back(std::move(made));
        if (sample.num_outputs > 2) list.push_back(case_of(op, sample, dtype, true));
      }
    }
  }
  return list;
}

}  // namespace ofsdp::testing

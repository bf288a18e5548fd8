#include "tests/support/op_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_values.h"

namespace ofsdp::testing {
namespace {

constexpr std::array<int64_t, 4> kSampleIndex = {5, 0, 131, 7};

// One sample in one layout, with the reference's results.
struct Setting {
  std::string where;  // "Add/channels channels_last"
  Problem problem;
  std::vector<RefTensor> inputs;
  std::vector<RefTensor> expected;
  double tolerance = 0;
};

struct Run {
  std::vector<GuardedBytes> inputs;
  std::vector<GuardedBytes> outputs;
  std::string error;
};

bool named(const std::vector<int>& list, size_t i) {
  return std::ranges::find(list, static_cast<int>(i)) != list.end();
}

// Puts the operands into the layout that the planner would choose; false: the sample has no such
// form.
bool make_channels_last(const OpDef& op, Problem& p) {
  bool any = false;
  auto set = [&any](TensorDesc& desc) {
    desc.layout = Layout::kChannelsLast;
    any = true;
  };
  if (op.layout == LayoutRule::kPlain) return false;
  if (op.layout == LayoutRule::kChannelsLast) {
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      if (named(op.channels_last_inputs, i) && p.inputs[i].shape.rank() == 4) set(p.inputs[i]);
    }
    for (size_t i = 0; i < p.outputs.size(); ++i) {
      if (named(op.channels_last_outputs, i) && p.outputs[i].shape.rank() == 4) set(p.outputs[i]);
    }
    return any;
  }
  const Shape& shape = p.outputs[0].shape;
  auto fits = [&](const TensorDesc& d) { return d.numel() == 1 || d.shape == shape; };
  if (shape.rank() != 4 || !std::ranges::all_of(p.inputs, fits)) return false;
  for (TensorDesc& desc : p.inputs) {
    if (desc.shape == shape) set(desc);
  }
  for (TensorDesc& desc : p.outputs) {
    if (desc.shape == shape) set(desc);
  }
  return true;
}

// The operands with two axes or more, inputs first.
std::vector<TensorDesc*> matrices_of(Problem& p) {
  std::vector<TensorDesc*> list;
  for (auto* descs : {&p.inputs, &p.outputs}) {
    for (TensorDesc& desc : *descs) {
      if (desc.present() && desc.shape.rank() >= 2 && desc.numel() > 0) list.push_back(&desc);
    }
  }
  return list;
}

// Problems where some operands have a pitch: each alone, all with one shape, all.
std::vector<Problem> pitched_problems(const Problem& dense) {
  Problem p = dense;
  const size_t count = matrices_of(p).size();
  std::set<std::vector<bool>> chosen;
  for (size_t i = 0; i < count; ++i) {
    std::vector<bool> alone(count), alike(count);
    alone[i] = true;
    for (size_t k = 0; k < count; ++k) alike[k] = *matrices_of(p)[k] == *matrices_of(p)[i];
    chosen.insert({alone, alike, std::vector<bool>(count, true)});
  }
  std::vector<Problem> made;
  for (const std::vector<bool>& some : chosen) {
    made.push_back(dense);
    const std::vector<TensorDesc*> list = matrices_of(made.back());
    for (size_t k = 0; k < count; ++k) {
      if (some[k]) list[k]->pitch = (list[k]->row() / 64 + 1) * 64;
    }
  }
  return made;
}

std::vector<GuardedBytes> input_bytes(const Setting& s) {
  std::vector<GuardedBytes> bytes;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const TensorDesc& desc = s.problem.inputs[i];
    bytes.emplace_back(desc.present() ? desc.bytes() : 0, uint8_t{0});
    if (desc.present()) encode(s.inputs[i].values, desc, bytes.back().data());
  }
  return bytes;
}

// Output `placed` lies on input `inplace`, unless that is negative.
Run run_kernel(const Setting& s, Kernel& kernel, uint8_t garbage, int inplace, size_t placed = 0) {
  Run run{input_bytes(s), {}, ""};
  std::vector<TensorView> inputs, outputs;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    const bool present = s.problem.inputs[i].present();
    inputs.push_back({present ? run.inputs[i].data() : nullptr, s.problem.inputs[i]});
  }
  for (const TensorDesc& desc : s.problem.outputs) {
    run.outputs.emplace_back(desc.present() ? desc.bytes() : 0, garbage);
  }
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    const bool present = s.problem.outputs[i].present();
    outputs.push_back({present ? run.outputs[i].data() : nullptr, s.problem.outputs[i]});
  }
  if (inplace >= 0) outputs[placed].data = inputs[static_cast<size_t>(inplace)].data;
  GuardedBytes workspace(kernel.workspace_bytes(), garbage);
  const StepContext step = check_step();
  const Status status = kernel.run({inputs, outputs, workspace.data(), &step});
  if (!status.ok()) run.error = s.where + ": run failed: " + status.message() + "\n";
  auto intact = [](const GuardedBytes& b) { return b.intact(); };
  if (!workspace.intact() || !std::ranges::all_of(run.inputs, intact) ||
      !std::ranges::all_of(run.outputs, intact)) {
    run.error += s.where + ": wrote outside of its tensors or workspace\n";
  }
  return run;
}

std::string compare(const Setting& s, size_t output, const GuardedBytes& bytes) {
  const TensorDesc& desc = s.problem.outputs[output];
  const auto found = decode(desc, bytes.data());
  const auto& expected = s.expected[output].values;
  if (expected.size() != found.size()) {
    return format_text("{}: output {}: the reference has {} elements, the kernel {}\n", s.where,
                       output, expected.size(), found.size());
  }
  double scale = 1e-3;
  for (double v : expected) {
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  }
  const double allowed = is_floating(desc.dtype) ? s.tolerance * scale : 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))) continue;
    if (std::abs(found[i] - expected[i]) <= allowed) continue;  // false for NaN
    return format_text("{}: output {} element {} of {}: expected {}, found {}, allowed {}\n",
                       s.where, output, i, desc.text(), expected[i], found[i], allowed);
  }
  return "";
}

// Whether both hold the same bits; bytes between rows do not count.
bool same_bits(const TensorDesc& desc, const GuardedBytes& a, const GuardedBytes& b) {
  if (desc.pitch == 0) return a == b;
  const size_t row = static_cast<size_t>(desc.row()) * dtype_size(desc.dtype);
  const size_t next = static_cast<size_t>(desc.pitch) * dtype_size(desc.dtype);
  bool same = a.size() == b.size();
  for (size_t at = 0; same && at < a.size(); at += next) {
    same = std::memcmp(a.data() + at, b.data() + at, row) == 0;
  }
  return same;
}

bool same_bits(const Setting& s, const Run& a, const Run& b) {
  for (size_t i = 0; i < s.problem.outputs.size(); ++i) {
    if (!same_bits(s.problem.outputs[i], a.outputs[i], b.outputs[i])) return false;
  }
  return true;
}

// With OFSDP_OUTPUT_HASHES=FILE: a line for each implementation and sample, to compare two commits.
void note_hash(const Setting& s, const std::vector<GuardedBytes>& outputs) {
  const char* path = std::getenv("OFSDP_OUTPUT_HASHES");
  if (path == nullptr) return;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorDesc& desc = s.problem.outputs[i];
    for (size_t k = 0; desc.present() && k < desc.bytes(); ++k) {
      hash = (hash ^ static_cast<uint8_t>(outputs[i].data()[k])) * 0x100000001b3;
    }
  }
  std::ofstream(path, std::ios::app) << s.where << ' ' << hash << '\n';
}

std::string check_inputs_unchanged(const Setting& s, const Run& run, int inplace) {
  const auto fresh = input_bytes(s);
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (static_cast<int>(i) != inplace && !(fresh[i] == run.inputs[i])) {
      return format_text("{}: input {} was changed\n", s.where, i);
    }
  }
  return "";
}

std::string check_implementation(const OpDef& op, const Setting& s, const Implementation& made) {
  const auto kernel = made.create(s.problem);
  const Run first = run_kernel(s, *kernel, 0xFF, -1);  // floats of 0xFF bytes are NaN
  if (!first.error.empty()) return first.error;
  note_hash(s, first.outputs);
  std::string wrong = check_inputs_unchanged(s, first, -1);
  for (size_t i = 0; i < first.outputs.size(); ++i) wrong += compare(s, i, first.outputs[i]);
  const Run again = run_kernel(s, *kernel, 0x5A, -1);
  if (!again.error.empty() || !same_bits(s, again, first)) {
    wrong += s.where + ": other bits when run again over other garbage\n" + again.error;
  }
  const auto placed = static_cast<size_t>(op.inplace_output);
  for (int k : op.inplace_inputs) {
    const auto i = static_cast<size_t>(k);
    if (!s.problem.has_in(i) || !s.problem.has_out(placed) ||
        s.problem.in(i) != s.problem.out(placed)) {
      continue;
    }
    const Run inside = run_kernel(s, *kernel, 0xFF, k, placed);
    wrong += inside.error + check_inputs_unchanged(s, inside, k);
    if (!same_bits(s.problem.outputs[placed], inside.inputs[i], first.outputs[placed])) {
      wrong += format_text("{}: other bits in place of input {}\n", s.where, i);
    }
    for (size_t other = 0; other < first.outputs.size(); ++other) {
      if (other != placed &&
          !same_bits(s.problem.outputs[other], inside.outputs[other], first.outputs[other]))
        wrong += format_text("{}: output {} has other bits when run in place\n", s.where, other);
    }
  }
  return wrong;
}

std::string check_setting(const OpDef& op, const Setting& s) {
  std::string wrong;
  bool accepted = false;
  for (const Implementation& made : op.cpu) {
    if (!made.accepts(s.problem)) continue;
    accepted = true;
    Setting named = s;
    named.where += " " + made.name;
    wrong += check_implementation(op, named, made);
  }
  if (!accepted && !op.view) wrong += s.where + ": no implementation accepts it\n";
  return wrong;
}

Problem problem_of(const SampleCase& sample, const CaseValues& values,
                   std::vector<TensorDesc> outputs) {
  outputs.resize(std::max(outputs.size(), sample.num_outputs));
  for (size_t i = sample.num_outputs; i < outputs.size(); ++i) outputs[i] = {};
  outputs.resize(sample.num_outputs);
  Problem p{sample.attributes, sample.inputs, std::move(outputs), values.constants};
  p.node_seed = kCheckNodeSeed;
  return p;
}

Result<Setting> setting_of(const OpDef& op, const SampleCase& sample) {
  const std::string where = op.full_name() + "/" + sample.name;
  const CaseValues values = make_values(sample);
  const InferContext context{sample.attributes, sample.inputs, values.constants,
                             std::vector<bool>(sample.num_outputs, true)};
  auto inferred = op.infer(context);
  if (!inferred.ok()) return input_error("{}: infer: {}", where, inferred.error().message());
  Setting s{where, problem_of(sample, values, *inferred), values.inputs, {}, sample.tolerance};
  s.expected = op.reference(
      {sample.attributes, values.inputs, s.problem.outputs, kCheckNodeSeed, check_step()});
  if (s.expected.size() >= sample.num_outputs) return s;
  return input_error("{}: the reference gives {} outputs, expected {}", where, s.expected.size(),
                     sample.num_outputs);
}

}  // namespace

StepContext check_step() { return {11, 3, kSampleIndex}; }

std::string check_definition(const OpDef& op) {
  const std::string name = op.full_name();
  if (samples_of(op).empty()) return name + ": no samples\n";
  if (op.cpu.empty() && !op.view && !is_composite(op))
    return name + ": neither an implementation nor a view\n";
  if (op.infer == nullptr) return name + ": no infer\n";
  if (op.reference == nullptr) return name + ": no reference\n";
  return "";
}

std::string check_kernels(const OpDef& op, const SampleCase& sample) {
  if (is_lowered(op, sample.attributes)) return "";  // standard_body_test has the body
  auto made = setting_of(op, sample);
  if (!made.ok()) return made.error().message() + "\n";
  Setting& s = *made;
  const std::string where = s.where;
  std::string wrong;
  if (op.view && s.problem.in(0).numel() != s.problem.out(0).numel()) {
    wrong += where + ": a view with another number of elements\n";
  }
  wrong += check_setting(op, s);
  if (!make_channels_last(op, s.problem)) return wrong;
  s.where += " channels_last";
  return wrong + check_setting(op, s);
}

std::string check_pitched(const OpDef& op, const SampleCase& sample, int& taken) {
  const auto dense = setting_of(op, sample);
  if (!dense.ok()) return dense.error().message() + "\n";
  std::string wrong;
  const auto empty = [](const TensorDesc& desc) { return desc.numel() == 0; };
  if (std::ranges::all_of(dense->problem.outputs, empty)) return wrong;  // nothing is computed
  for (const Problem& problem : pitched_problems(dense->problem)) {
    Setting s = *dense;
    s.problem = problem;
    for (const auto* descs : {&problem.inputs, &problem.outputs}) {
      for (const TensorDesc& desc : *descs) s.where += " " + desc.text();
    }
    for (const Implementation& made : op.cpu) {
      if (!made.accepts(problem)) continue;
      ++taken;
      wrong += check_implementation(op, s, made);
    }
  }
  return wrong;
}

}  // namespace ofsdp::testing

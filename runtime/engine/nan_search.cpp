#include "runtime/engine/nan_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fsdp/comm/communicator.h"
#include "kernels/base/text.h"

namespace ofsdp::runtime {

namespace {

template <typename T>
void add_values(const T* values, size_t count, ValueRange& range) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    if (std::isnan(value)) {
      ++range.nans;
    } else if (std::isinf(value)) {
      ++range.infinite;
    } else {
      range.least = std::min(range.least, value);
      range.most = std::max(range.most, value);
    }
  }
  range.count += static_cast<int64_t>(count);
}

// Block by block in float32, which holds them all.
void add_halves(DType dtype, std::span<const std::byte> bytes, ValueRange& range) {
  constexpr size_t kBlock = 1024;
  std::array<float, kBlock> wide;
  const size_t count = bytes.size() / dtype_size(dtype);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    convert_elements(bytes.data() + begin * dtype_size(dtype), dtype,
                     reinterpret_cast<std::byte*>(wide.data()), DType::kFloat32,
                     static_cast<int64_t>(n));
    add_values(wide.data(), n, range);
  }
}

// An operand's name and value range, for the table.
struct SeenOperand {
  const char* role;
  std::string name, type;
  ValueRange range;
  bool floating = false;
};

// Adds the operands that are present. Inputs are read before the node runs, which may overwrite
// them.
Status look_at(const char* role, const std::vector<TensorView>& views,
               const std::vector<ValueId>& values, const Graph& graph, const NanSearch& search,
               std::vector<SeenOperand>& seen) {
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].data == nullptr) continue;
    const TensorDesc& desc = views[i].desc;
    SeenOperand operand{
        role,
        i < values.size() ? graph.value(values[i]).name : "",
        format_text("{}[{}]", dtype_name(desc.dtype), joined(desc.shape.axes(), ",")),
        {},
        is_floating(desc.dtype)};
    OFSDP_ASSIGN_OR_RETURN(operand.range, search.range(views[i]));
    seen.push_back(std::move(operand));
  }
  return {};
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string table(const Node& node, const std::vector<SeenOperand>& seen) {
  size_t names = 0, types = 0;
  for (const SeenOperand& operand : seen) {
    names = std::max(names, escaped(operand.name).size());
    types = std::max(types, operand.type.size());
  }
  std::string text =
      format_text("operands of '{}' ({}):", escaped(node.name), escaped(node.op->full_name()));
  for (const SeenOperand& operand : seen) {
    text += format_text("\n  {}  {}  {}  {}", padded(operand.role, 6),
                        padded("'" + escaped(operand.name) + "'", names + 2),
                        padded(operand.type, types), runtime::text(operand.range));
  }
  return text;
}

// Runs the node; returns the first NaN that it reads or makes, or the first infinity that it makes
// from finite operands.
Result<NanFound> nan_of(const Operation& op, const BoundRun& run, const Graph& graph,
                        const NanSearch& search, bool infinities) {
  const Node& node = *run.node;
  std::vector<SeenOperand> seen;
  OFSDP_RETURN_IF_ERROR(look_at("input", run.inputs, node.inputs, graph, search, seen));
  const size_t inputs = seen.size();
  OFSDP_RETURN_IF_ERROR(search.execute(op));
  OFSDP_RETURN_IF_ERROR(look_at("output", run.outputs, node.outputs, graph, search, seen));
  const auto has_nan = [](const SeenOperand& o) { return o.floating && o.range.nans > 0; };
  auto found = std::ranges::find_if(seen, has_nan);
  if (found == seen.end() && infinities) {
    const auto is_infinite = [](const SeenOperand& o) {
      return o.floating && o.range.infinite > 0;
    };
    found = std::ranges::find_if(seen, is_infinite);
    if (found - seen.begin() < static_cast<std::ptrdiff_t>(inputs)) found = seen.end();
  }
  if (found == seen.end()) return NanFound{};
  const bool read = static_cast<size_t>(found - seen.begin()) < inputs;
  return NanFound{
      read ? format_text("first in '{}', which node '{}' ({}) reads", found->name, node.name,
                         node.op->full_name())
           : format_text("first made by node '{}' ({})", node.name, node.op->full_name()),
      table(node, seen)};
}

}  // namespace

void ValueRange::add(DType dtype, std::span<const std::byte> bytes) {
  const auto add = [&]<typename T>(T) {
    add_values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T), *this);
  };
  switch (dtype) {
    case DType::kFloat32:
      return add(float{});
    case DType::kFloat64:
      return add(double{});
    case DType::kFloat16:
    case DType::kBFloat16:
      return add_halves(dtype, bytes, *this);
    case DType::kInt8:
      return add(int8_t{});
    case DType::kInt16:
      return add(int16_t{});
    case DType::kInt32:
      return add(int32_t{});
    case DType::kInt64:
      return add(int64_t{});
    case DType::kBool:
    case DType::kUInt8:
      return add(uint8_t{});
    case DType::kUInt16:
      return add(uint16_t{});
    case DType::kUInt32:
      return add(uint32_t{});
    case DType::kUInt64:
      return add(uint64_t{});
    default:
      return;
  }
}

std::string text(const ValueRange& range) {
  if (range.count == 0) return "no values";
  std::string out = "no finite value";
  if (range.least <= range.most) out = format_text("{:.4g} to {:.4g}", range.least, range.most);
  if (range.nans > 0) out += format_text(", {} NaN", readable_count(range.nans));
  if (range.infinite > 0) out += format_text(", {} infinite", readable_count(range.infinite));
  return out;
}

bool is_of_unshard(const Operation& op) {
  return op.kind == OpKind::kUnshard || op.kind == OpKind::kCopyUp;
}

bool any_nan(std::span<const float> values) {
  return std::ranges::any_of(values, [](float value) { return std::isnan(value); });
}

Result<NanFound> first_nan(const BoundProgram& program, const NanSearch& search) {
  NanFound found;
  bool backward = false;
  for (const Operation& op : program.operations) {
    if (op.kind == OpKind::kCheckLoss && !search.gradients) break;
    backward = backward || op.kind == OpKind::kCheckLoss;
    if (!found.first.empty() && !search.together) break;
    const bool runs = op.kind == OpKind::kRun && search.here && found.first.empty();
    if (runs) {
      const BoundRun& run = program.runs[static_cast<size_t>(op.run)];
      OFSDP_ASSIGN_OR_RETURN(found, nan_of(op, run, program.plan->graph, search, backward));
    } else if (is_of_unshard(op)) {
      OFSDP_RETURN_IF_ERROR(search.execute(op));
    }
  }
  if (found.first.empty()) found.first = "none found when run again";
  return found;
}

Status loss_fault(const StepProgram& plan, int64_t step, int rank, const NanFound& found) {
  const bool training = plan.options.training;
  Status line = fault("{}: {} is NaN {} step {}, rank {}{}{}", plan.graph.file,
                      training ? "loss" : "evaluation loss", training ? "at" : "after", step, rank,
                      found.first.empty() ? "" : ": ", found.first);
  return with_table(std::move(line), found.operands);
}

Status with_table(Status error, const std::string& lines) {
  if (error.ok() || lines.empty()) return error;
  return {error.kind(), error.message() + "\n" + lines};
}

}  // namespace ofsdp::runtime

#include "runtime/program/operation.h"

#include <array>

namespace ofsdp::runtime {
namespace {

constexpr std::array kKindNames{
#define OPERATION(kind, engine, cost, traffic, description) #kind,
#define HOST_OPERATION(kind, description) #kind,
#include "runtime/program/steps.inc"
};
constexpr std::array kAreaNames{"none",   "arena", "kept",  "state",       "shared",
                                "common", "host",  "input", "loss-weight", "run-state"};

std::string text(const Operand& o) {
  if (o.area == Area::kInput) return format_text("input {}", o.offset);
  const std::string rows = o.pitch == 0 ? "" : format_text(" in rows of {}", o.pitch);
  return format_text("{}+{}[{} {}{}]{}", kAreaNames[static_cast<size_t>(o.area)], o.offset, o.count,
                     dtype_name(o.dtype), rows, o.writes ? " w" : "");
}

std::string text(const Stages& stages) {
  std::string out;
  if (stages.ordered) out += " ordered";
  if (stages.round_to != DType::kFloat32)
    out += format_text(" round {}", dtype_name(stages.round_to));
  if (stages.adds) out += " add";
  if (stages.positive_zero) out += " positive-zero";
  if (stages.norm) out += " norm";
  if (stages.exact) out += " exact";
  if (stages.update) out += " update";
  return out;
}

}  // namespace

std::string text(const Operation& op) {
  constexpr std::array kLanes{"", " communication", " download"};
  std::string out = kKindNames[static_cast<size_t>(op.kind)];
  if (op.node >= 0) out += format_text(" n{}", op.node);
  if (op.unit >= 0) out += format_text(" u{}", op.unit);
  out += kLanes[static_cast<size_t>(op.lane)];
  if (op.channel >= 0) out += format_text(" channel {}", op.channel);
  if (op.group.count > 1) {
    out += format_text(" ranks {}:{}:{}", op.group.first, op.group.count, op.group.stride);
  }
  if (op.part.numel > 0) out += format_text(" part {}+{}", op.part.begin, op.part.numel);
  if (op.src.area != Area::kNone) out += " src " + text(op.src);
  if (op.onto.area != Area::kNone) out += " onto " + text(op.onto);
  if (op.dst.area != Area::kNone) out += " dst " + text(op.dst);
  if (op.converts) out += " converts";
  if (op.rowless) out += " rowless";
  if (op.slot >= 0) out += format_text(" slot {}", op.slot);
  out += text(op.stages);
  for (const Operand& operand : op.operands) {
    if (op.node >= 0) out += " " + text(operand);
  }
  return out;
}

}  // namespace ofsdp::runtime

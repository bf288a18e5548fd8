#include "importer/passes/batch_axes.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "kernels/base/names.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool says_batch(const Dim& dim) {
  return lower_case(dim.symbol).find("batch") != std::string::npos;
}

bool says_time(const Dim& dim) {
  const std::string symbol = lower_case(dim.symbol);
  if (symbol == "t" || symbol == "l" || symbol == "s") return true;
  return std::ranges::any_of(std::array{"time", "seq", "len", "frame", "step"},
                             [&](const char* w) { return symbol.find(w) != std::string::npos; });
}

bool is_batch_letter(const Dim& dim) {
  const std::string symbol = lower_case(dim.symbol);
  return symbol == "n" || symbol == "b" || symbol == "bs" || symbol == "bsz";
}

using Dims = std::vector<Dim>;

// Returns the axis that its own symbols say.
std::optional<size_t> axis_said(const Dims& dims) {
  const auto said = std::ranges::find_if(dims, says_batch);
  if (said != dims.end()) return said - dims.begin();
  if (dims.empty() || !says_time(dims[0])) return {};
  const auto letter = std::ranges::find_if(dims, is_batch_letter);
  if (letter != dims.end()) return letter - dims.begin();
  return {};
}

// Returns the only axis with one of the symbols.
std::optional<size_t> axis_among(const Dims& dims, const std::set<std::string>& symbols) {
  std::optional<size_t> found;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!symbols.contains(dims[i].symbol)) continue;
    if (found) return {};
    found = i;
  }
  return found;
}

std::string dims_text(const Dims& dims) {
  std::vector<std::string> axes;
  for (const Dim& dim : dims) {
    const bool open = dim.size < 0;
    axes.push_back(!open ? std::to_string(dim.size) : dim.symbol.empty() ? "?" : dim.symbol);
  }
  return "[" + joined(axes, ", ") + "]";
}

class AxisFinder {
 public:
  AxisFinder(const Graph& graph, const BatchAxes& given) : graph_(graph), given_(given) {
    for (const ValueId id : graph.inputs) {
      const Dims& dims = graph.value(id).declared;
      if (dims.empty()) continue;
      if (const auto axis = axis_said(dims)) said_.insert(dims[*axis].symbol);
      first_.insert(dims[0].symbol);
    }
    first_.insert(said_.begin(), said_.end());
    said_.erase("");
    first_.erase("");
  }

  Result<std::map<ValueId, size_t>> run() {
    for (const ValueId id : graph_.inputs) {
      OFSDP_ASSIGN_OR_RETURN(axes_[id], axis(graph_.value(id)));
    }
    for (const ValueId id : graph_.inputs) OFSDP_RETURN_IF_ERROR(check(id));
    return std::move(axes_);
  }

 private:
  Result<size_t> axis(const Value& input) const {
    const Dims& dims = input.declared;
    if (const auto given = given_.find(input.name); given != given_.end()) {
      const auto rank = static_cast<int64_t>(dims.size());
      const int64_t axis = given->second < 0 ? given->second + rank : given->second;
      OFSDP_REJECT_IF(axis < 0 || axis >= rank,
                      "--batch-axis {}={}: {}: expected an axis of input {}, found none",
                      input.name, given->second, graph_.file, dims_text(dims));
      return static_cast<size_t>(axis);
    }
    if (dims.empty()) return size_t{0};
    if (const auto own = axis_said(dims)) return *own;
    return axis_among(dims, dims[0].size >= 0 ? first_ : said_).value_or(0);
  }

  // The symbol of the samples must not be another axis elsewhere.
  Status check(ValueId id) const {
    const Value& input = graph_.value(id);
    const std::string symbol = symbol_of(id);
    if (symbol.empty() || given_.contains(input.name)) return {};
    for (const ValueId other : graph_.inputs) {
      const std::string others = symbol_of(other);
      const Dims& dims = graph_.value(other).declared;
      if (others.empty() || others == symbol || !std::ranges::count(dims, symbol, &Dim::symbol)) {
        continue;
      }
      return input_error(
          "{}: input '{}' {}: axis {} is '{}', which is not the batch of input '{}' {}; "
          "--batch-axis {}=AXIS names the axis of the samples",
          graph_.file, input.name, dims_text(input.declared), axes_.at(id), symbol,
          graph_.value(other).name, dims_text(dims), input.name);
    }
    return {};
  }

  std::string symbol_of(ValueId id) const {
    const Dims& dims = graph_.value(id).declared;
    return dims.empty() ? "" : dims[axes_.at(id)].symbol;
  }

  const Graph& graph_;
  const BatchAxes& given_;
  std::set<std::string> said_;   // symbols that say batch themselves
  std::set<std::string> first_;  // these, and those of first axes
  std::map<ValueId, size_t> axes_;
};

// Puts a column in the place of the input, which a Transpose of it makes from now on.
Node read_moved(Graph& graph, ValueId& input, size_t axis) {
  Value column = graph.value(input);
  const auto at = column.declared.begin() + static_cast<std::ptrdiff_t>(axis);
  std::rotate(column.declared.begin(), at, at + 1);
  std::vector<int64_t> perm;
  for (size_t i = 0; i < column.declared.size(); ++i) {
    perm.push_back(static_cast<int64_t>(i < axis ? i + 1 : i == axis ? 0 : i));
  }
  const std::string name = column.name + ".batch_axis";
  Value& moved = graph.value(input);
  moved = {name, ValueKind::kActivation, {moved.desc.dtype, {}}};
  const ValueId made = GraphEditor(graph).add_value(std::move(column));
  return {&graph.registry->get("Transpose"),
          name,
          {{"perm", perm}},
          {made},
          {std::exchange(input, made)}};
}

// Returns whether the column of `row` fits with the samples on axis `k`, in batches of the number
// that the first axis is.
bool fits_moved(const Dims& dims, const Shape& row, size_t k) {
  if (dims[k].size >= 0 && dims[k].size != dims[0].size) return false;
  for (size_t i = 0, at = 0; i < dims.size(); ++i) {
    if (i == k) continue;
    const int64_t size = row[static_cast<int>(at++)];
    if (dims[i].size >= 0 && dims[i].size != size) return false;
  }
  return true;
}

}  // namespace

Status check_names(const Graph& graph, const BatchAxes& given) {
  std::vector<std::string> names;
  for (const auto* ids : {&graph.inputs, &graph.outputs}) {
    for (const ValueId id : *ids) names.push_back(graph.value(id).name);
  }
  for (const auto& [name, axis] : given) {
    OFSDP_REJECT_IF(std::ranges::find(names, name) == names.end(),
                    "--batch-axis {}={}: {} has no such input or output; it has {}", name, axis,
                    graph.file, joined(names, ", "));
  }
  return {};
}

Result<Graph> with_samples_first(const Graph& graph, const BatchAxes& given) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, AxisFinder(graph, given).run());
  Graph made = graph;
  std::vector<Node> nodes;
  for (ValueId& input : made.inputs) {
    const size_t axis = axes.at(input);
    if (axis > 0) nodes.push_back(read_moved(made, input, axis));
  }
  made.nodes.insert(made.nodes.begin(), nodes.begin(), nodes.end());
  return made;
}

Status check_batch_axes(const Graph& graph, const std::map<std::string, Shape>& rows,
                        const BatchAxes& given) {
  const bool any_size = std::ranges::any_of(graph.inputs, [&](ValueId id) {
    const Dims& dims = graph.value(id).declared;
    return !dims.empty() && dims[0].size < 0;
  });
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const Dims& dims = input.declared;
    const Shape& row = rows.at(input.name);
    if (!any_size || given.contains(input.name) || dims.empty() || dims[0].size <= 1) continue;
    if (row.rank() + 1 != static_cast<int>(dims.size())) continue;
    for (size_t k = 1; k < dims.size(); ++k) {
      OFSDP_REJECT_IF(
          fits_moved(dims, row, k),
          "{}: input '{}' {}: its samples may lie on axis 0 or {}; --batch-axis {}=AXIS "
          "names the axis",
          graph.file, input.name, dims_text(dims), k, input.name);
    }
  }
  return {};
}

}  // namespace ofsdp::importer

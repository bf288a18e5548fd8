#include "runtime/train/setup/like_lengths.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/names.h"
#include "kernels/base/text.h"

namespace ofsdp::runtime {

Status add_lengths(const std::string& column, ColumnSet& set, std::vector<std::string>& names) {
  const ColumnSpec* const found = set.find(column);
  OFSDP_REJECT_IF(found == nullptr, "--bucket-by {}: expected a column of {}, found: {}{}", column,
                  set.origin, joined(set.names(), ", "), did_you_mean(column, set.names()));
  if (!found->padding) {
    names.push_back(column);
    return {};
  }
  ColumnSpec lengths = *found;
  lengths.name = kLengthsColumn;
  if (lengths.parts.empty() && !lengths.tokenizer) lengths.parts = {column};
  lengths.padding->mask = false;
  lengths.padding->lengths = true;
  lengths.row.reset();
  set.columns.push_back(std::move(lengths));
  names.emplace_back(kLengthsColumn);
  return {};
}

namespace {

// Finds the cuts of a model; `reason` says why there are none.
class CutFinder {
 public:
  CutFinder(const Options& options, ModelSetup& setup)
      : column_(options.run.bucket_by), joins_(joins_rows(options)), setup_(setup) {}

  Status run(RowCuts& cuts) {
    GraphSettings kept = setup_.source->settings();
    reason_ = why_whole();
    if (!reason_.empty()) return {};
    const std::vector<int64_t> lengths = lengths_to_cut();
    if (lengths.empty()) return {};
    for (const bool labels : {true, false}) {
      if (Status tried = try_axes(labels, lengths, kept, cuts); tried.ok()) return {};
      cuts.cuts.clear();
      setup_.source->configure(kept);
    }
    return {};
  }

  const std::string& reason() const { return reason_; }

 private:
  std::string why_whole() {
    const GraphSettings& settings = setup_.source->settings();
    if (setup_.source->teacher() != nullptr) return "a teacher reads them";
    if (joins_) return "samples of several ranks meet";
    for (const LossSpec& loss : settings.losses) {
      if (loss.outer != 1) return "the batch is not the first axis of the prediction";
    }
    find_axis();
    if (symbol_.empty()) return "the model fixes their length";
    return "";
  }

  // The axis is that of the column, or of the first input with whole numbers in rows.
  void find_axis() {
    for (const bool named : {true, false}) {
      for (const ValueId id : setup_.graph.inputs) {
        const Value& input = setup_.graph.value(id);
        const bool rows = input.declared.size() > 1 && input.declared[1].size < 0;
        const bool fits = named ? input.name == column_ : is_integer(input.desc.dtype);
        if (!rows || !fits || !symbol_.empty()) continue;
        symbol_ = input.declared[1].symbol;
        whole_ = setup_.source->settings().rows.at(input.name)[0];
      }
    }
  }

  // Even steps up to the whole length; only lengths that rows need.
  std::vector<int64_t> lengths_to_cut() const {
    const auto lengths = setup_.cuts->order->lengths();
    const int64_t shortest = *std::ranges::min_element(lengths);
    const int64_t step = (whole_ + kMostCuts - 1) / kMostCuts;
    std::vector<int64_t> made;
    for (int64_t length = step; length < whole_; length += step) {
      if (length >= shortest) made.push_back(length);
    }
    return made;
  }

  std::map<std::string, std::vector<int>> axes_to_cut(bool labels) const {
    std::map<std::string, std::vector<int>> made;
    for (const ValueId id : setup_.graph.inputs) {
      const Value& input = setup_.graph.value(id);
      for (size_t axis = 1; axis < input.declared.size(); ++axis) {
        const Dim& dim = input.declared[axis];
        if (dim.size < 0 && dim.symbol == symbol_) {
          made[input.name].push_back(static_cast<int>(axis) - 1);
        }
      }
    }
    for (const LossSpec& loss : setup_.source->settings().losses) {
      const std::string label = label_column(setup_.graph, loss);
      if (!labels || label.empty() || made.contains(label)) continue;
      const auto row = setup_.source->settings().rows.find(label);
      if (row == setup_.source->settings().rows.end()) continue;
      if (row->second == Shape{whole_}) made[label] = {0};
    }
    return made;
  }

  // Makes the graph of each length. Returns an error if the model or a loss takes only whole rows.
  Status try_axes(bool labels, const std::vector<int64_t>& lengths, const GraphSettings& kept,
                  RowCuts& cuts) {
    GraphSettings settings = kept;
    settings.cut_axes = axes_to_cut(labels);
    OFSDP_RETURN_IF_ERROR(check_losses(settings));
    setup_.source->configure(std::move(settings));
    for (const int64_t length : lengths) {
      Result<Graph> graph = setup_.training_graph(setup_.batch.batch_size, length);
      if (!graph.ok()) {
        reason_ = graph.error().message();
        return std::move(graph).status();
      }
      OFSDP_ASSIGN_OR_RETURN(std::vector<Shape> rows, rows_of(*graph));
      cuts.cuts.push_back({length, std::move(rows)});
    }
    reason_.clear();
    return {};
  }

  // A mean over labels that count does not depend on the length, nor does a label of each sample.
  Status check_losses(const GraphSettings& settings) {
    for (const LossCount& count : setup_.counts) {
      const bool cut = settings.cut_axes.contains(count.labels);
      const bool of_samples = !count.labels.empty() && !cut;
      if (count.by_label || of_samples) continue;
      reason_ = "a loss is a mean over their entries";
      return input_error("{}", reason_);
    }
    return {};
  }

  // Returns the columns' rows in a cut graph. Its inputs are bound in the columns' order.
  Result<std::vector<Shape>> rows_of(const Graph& graph) {
    const auto columns = setup_.data.train->columns();
    std::vector<Shape> rows;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Value& input = graph.value(graph.inputs[i]);
      const auto& axes = input.desc.shape.axes();
      const Shape row(std::vector<int64_t>(axes.begin() + 1, axes.end()));
      const bool same = row.numel() == columns[i].row.numel();
      const bool fits = row.rank() == columns[i].row.rank();
      if (input.name != columns[i].name || !(same || fits)) {
        reason_ = format_text("column '{}' has other axes than the graph", columns[i].name);
        return input_error("{}", reason_);
      }
      rows.push_back(same ? columns[i].row : row);
    }
    return rows;
  }

  const std::string& column_;
  const bool joins_;
  ModelSetup& setup_;
  std::string symbol_;  // of the axis
  int64_t whole_ = 0;   // its size in the data
  std::string reason_;
};

// Returns the part of the entries of an epoch's batches that is no padding.
double used_part(const RowCuts& cuts, int64_t whole, int64_t batch, bool ordered) {
  const LengthOrder& order = *cuts.order;
  int64_t used = 0, all = 0, longest = 0;
  for (int64_t i = 0; i < order.samples(); ++i) {
    used += order.length(i);
    longest = std::max(longest, ordered ? order.length(order.at(0, i)) : whole);
    const int64_t in_batch = i % batch + 1;
    if (in_batch < batch && i + 1 < order.samples()) continue;
    const auto cut = std::ranges::lower_bound(cuts.cuts, longest, {}, &RowCuts::Cut::length);
    all += in_batch * (cut == cuts.cuts.end() || in_batch < batch ? whole : cut->length);
    longest = 0;
  }
  return static_cast<double>(used) / static_cast<double>(std::max<int64_t>(all, 1));
}

std::string notice_of(const std::string& column, const RowCuts& cuts, int64_t batch,
                      const std::string& reason) {
  const auto lengths = cuts.order->lengths();
  const auto [least, most] = std::ranges::minmax(lengths);
  std::string text = format_text("--bucket-by {}: rows of {} to {} entries", column, least, most);
  if (!reason.empty()) return text + format_text(" stay whole: {}\n", reason);
  if (cuts.cuts.empty()) return text + " stay whole\n";
  std::vector<std::string> cut;
  for (const RowCuts::Cut& one : cuts.cuts) cut.push_back(std::to_string(one.length));
  const int64_t whole = std::max<int64_t>(most, cuts.cuts.back().length);
  return text + format_text(" are cut to {}; {:.0f} % of a batch is no padding, {:.0f} % without\n",
                            joined(cut, ", "), 100 * used_part(cuts, whole, batch, true),
                            100 * used_part(cuts, whole, batch, false));
}

}  // namespace

Status order_by_length(const Options& options, int ranks, ModelSetup& setup) {
  const std::string& column = options.run.bucket_by;
  if (column.empty() || setup.data.train == nullptr) return {};
  const ColumnSpec* const spec = setup.data.spec.train.find(column);
  OFSDP_ASSIGN_OR_RETURN(
      std::vector<int32_t> lengths,
      setup.data.train->read_lengths(spec != nullptr && spec->padding ? kLengthsColumn : column));
  setup.cuts = std::make_shared<RowCuts>();
  setup.cuts->batch_size = setup.batch.batch_size;
  setup.cuts->order = std::make_shared<const LengthOrder>(std::move(lengths), options.run.shuffle,
                                                          options.run.seed);
  CutFinder finder(options, setup);
  OFSDP_RETURN_IF_ERROR(finder.run(*setup.cuts));
  setup.bucket_notice =
      notice_of(column, *setup.cuts, setup.batch.batch_size * ranks, finder.reason());
  return {};
}

}  // namespace ofsdp::runtime

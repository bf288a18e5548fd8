#include "runtime/train/setup/packing.h"

#include <algorithm>
#include <cmath>

#include "importer/file/tensor_record.h"
#include "importer/graph/reference_run.h"
#include "importer/passes/specialize.h"
#include "kernels/base/text.h"
#include "runtime/data/row_lengths.h"
#include "runtime/engine/forward.h"
#include "runtime/train/setup/free_batch.h"
#include "runtime/train/setup/like_lengths.h"

namespace ofsdp::runtime {

namespace {

std::string column_of_lengths(const ColumnSet& set, const Graph& graph) {
  for (const ColumnSpec& column : set.columns) {
    if (column.padding && !column.padding->mask && !column.padding->lengths) return column.name;
  }
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (is_integer(input.desc.dtype) && input.declared.size() == 2) return input.name;
  }
  return "";
}

}  // namespace

Result<std::string> packed_by(const Options& options, const DataSpec& spec, const Graph& graph) {
  const int64_t length = *options.run.pack;
  OFSDP_REJECT_IF(spec.synthetic || !options.run.bucket_by.empty(),
                  "--pack {}: expected rows of files without --bucket-by, found {}", length,
                  spec.synthetic ? "--data synthetic" : "--bucket-by " + options.run.bucket_by);
  OFSDP_REJECT_IF(!options.teacher.path.empty(),
                  "--pack {}: expected no --teacher, whose graph has no documents", length);
  std::string column = column_of_lengths(spec.train, graph);
  OFSDP_REJECT_IF(column.empty(),
                  "--pack {}: {}: expected an input [batch, tokens] of whole numbers, found none",
                  length, graph.file);
  return column;
}

bool is_made_up(const ColumnSet& set, const std::string& input) {
  return input == "position_ids" && set.find(input) == nullptr;
}

Status plan_packed_rows(int64_t length, const Graph& graph, GraphSettings& settings) {
  OFSDP_REJECT_IF(brings_backward(graph),
                  "--pack {}: {}: expected a model without a backward part of its own", length,
                  graph.file);
  int64_t own = 0;
  for (const auto& [name, row] : settings.rows) {
    OFSDP_REJECT_IF(row.rank() != 1 || (own != 0 && row[0] != own),
                    "--pack {}: column '{}': expected an entry for each token, found rows of {}{}",
                    length, name, row.text(), own == 0 ? "" : format_text(" beside [{}]", own));
    own = row[0];
  }
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const int64_t fixed = input.declared.size() == 2 ? input.declared[1].size : -1;
    OFSDP_REJECT_IF(fixed >= 0 && fixed != length,
                    "--pack {}: input '{}' of {} has {} entries: expected --pack {}", length,
                    input.name, graph.file, fixed, fixed);
    settings.rows[input.name] = Shape{length};
  }
  for (auto& [name, row] : settings.rows) row = Shape{length};
  settings.packed = length;
  return {};
}

namespace {

// The packed columns in the order of a graph's inputs. `masks`: their fill.
std::vector<PackedColumn> packed_columns(const Graph& graph, const RowSource& rows,
                                         const std::vector<LossCount>& counts, int64_t length,
                                         int64_t masks) {
  std::vector<PackedColumn> columns;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    PackedColumn& made = columns.emplace_back();
    made.bound = {input.name, "--pack", input.desc.dtype, Shape{length}};
    const auto source = std::ranges::find(rows.columns(), input.name, &BoundColumn::name);
    made.kind = input.name == kSegmentsInput     ? PackedKind::kSegments
                : source == rows.columns().end() ? PackedKind::kPositions
                                                 : PackedKind::kEntries;
    if (made.kind != PackedKind::kEntries) continue;
    made.source = static_cast<int>(source - rows.columns().begin());
    made.bound.source = source->source;
    made.fill = is_mask(input.name) ? masks : 0;
    for (const LossCount& count : counts) {
      if (count.by_label && count.labels == input.name) made.ignored = count.ignore_index;
    }
    made.fill = made.ignored.value_or(made.fill);
  }
  return columns;
}

Result<std::vector<int32_t>> lengths_of(const Options& options, const ModelSetup& setup,
                                        const ColumnSet& set, const Dataset& data) {
  const std::string column = column_of_lengths(set, setup.graph);
  const ColumnSpec* const spec = set.find(column);
  const bool padded = spec != nullptr && spec->padding;
  OFSDP_ASSIGN_OR_RETURN(std::vector<int32_t> lengths,
                         data.read_lengths(padded ? kLengthsColumn : column));
  int64_t most = *options.run.pack;
  for (const BoundColumn& bound : data.columns()) most = std::min(most, bound.row.numel());
  for (size_t i = 0; i < lengths.size(); ++i) {
    OFSDP_REJECT_IF(lengths[i] > most,
                    "--pack {}: column '{}', sample {}: expected at most {} entries, found {}",
                    *options.run.pack, column, i, most, lengths[i]);
  }
  return lengths;
}

Result<std::unique_ptr<PackedRows>> packed(const Options& options, const Graph& finished,
                                           const ModelSetup& setup, const ColumnSet& set,
                                           Dataset& data) {
  const int64_t length = *options.run.pack;
  OFSDP_ASSIGN_OR_RETURN(std::vector<int32_t> lengths, lengths_of(options, setup, set, data));
  PackPlan plan = pack_documents(lengths, length);
  return std::make_unique<PackedRows>(data, std::move(lengths), std::move(plan),
                                      packed_columns(finished, data, setup.counts, length, 1));
}

}  // namespace

Status pack_data(const Options& options, const Graph& finished, ModelSetup& setup) {
  DataSetup& data = setup.data;
  const int64_t length = *options.run.pack;
  for (const LossCount& count : setup.counts) {
    const bool ignores = count.by_label && count.ignore_index != kNoIgnoreIndex;
    OFSDP_REJECT_IF(!ignores,
                    "--pack {}: expected a loss over labels of tokens that ignores padding "
                    "(--loss cross_entropy), found another",
                    length);
  }
  OFSDP_ASSIGN_OR_RETURN(data.packed_train,
                         packed(options, finished, setup, data.spec.train, *data.train));
  if (data.eval) {
    OFSDP_ASSIGN_OR_RETURN(data.packed_eval,
                           packed(options, finished, setup, *data.spec.eval, *data.eval));
  }
  const int64_t documents = data.train->samples();
  int64_t used = 0;
  for (int64_t i = 0; i < documents; ++i) used += data.packed_train->length(i);
  const int64_t rows = data.packed_train->samples();
  const auto part = [&](int64_t all) {
    return 100.0 * static_cast<double>(used) / static_cast<double>(all * length);
  };
  setup.bucket_notice = format_text(
      "--pack {}: {} documents in {} rows; {:.0f} % of a row is no padding, {:.0f} % without\n",
      length, documents, rows, part(rows), part(documents));
  return {};
}

namespace {

// Sums run in another order in other places of a row.
constexpr double kPackedTolerance = 1e-4;  // of an output's largest number
constexpr double kMostCheckSeconds = 30;
constexpr double kProductsAreFaster = 100;  // times, than the reference's loops
constexpr double kMostCheckBytes = 8e9;     // in double; kernels take half

// Runs the two documents of the row that has the longest pair, in batches of two if the file leaves
// that open: what has one row for all samples then differs from what has a row for each.
class PackingCheck {
 public:
  PackingCheck(const Options& options, ModelSetup& setup)
      : length_(*options.run.pack),
        batch_(fixed_batch(setup.graph) > 0 ? fixed_batch(setup.graph) : 2),
        setup_(setup),
        rows_(*setup.data.packed_train) {}

  Status run() {
    find_pair();
    if (pair_.empty()) return {};  // no row has two documents
    OFSDP_ASSIGN_OR_RETURN(const Graph alone, setup_.source->forward_of_documents(batch_, false));
    if (!is_affordable(alone)) return {};
    OFSDP_ASSIGN_OR_RETURN(const Graph together, setup_.source->forward_of_documents(batch_, true));
    OFSDP_ASSIGN_OR_RETURN(const Outputs packed, outputs_of(together, {pair_, {2}}, 0, 1));
    Outputs single;
    int64_t begin = 0;
    for (int64_t i = 0; i < 2; ++i) {
      if (i == 0 || batch_ == 1) {
        OFSDP_ASSIGN_OR_RETURN(single, outputs_of(alone, {pair_, {1, 2}}, i, 0));
      }
      const int64_t count = rows_.length(pair_[static_cast<size_t>(i)]);
      const int64_t row = batch_ == 1 ? 0 : i;
      OFSDP_RETURN_IF_ERROR(compare_all(alone, packed, begin, single, row * length_, count));
      begin += count;
    }
    return {};
  }

 private:
  using Outputs = std::map<std::string, std::vector<float>>;

  void find_pair() {
    int64_t longest = 0;
    for (int64_t row = 0; row < rows_.samples(); ++row) {
      const auto all = rows_.documents_of(row);
      if (all.size() < 2) continue;
      const int64_t shorter = std::min(rows_.length(all[0]), rows_.length(all[1]));
      if (shorter <= longest) continue;
      longest = shorter;
      pair_.assign(all.begin(), all.begin() + 2);
    }
  }

  bool is_affordable(const Graph& graph) {
    const double passes = batch_ == 1 ? 3 : 2;
    const double seconds = passes * ReferenceRun::seconds_of(graph) / kProductsAreFaster;
    const double bytes = ReferenceRun::bytes_of(graph);
    if (seconds <= kMostCheckSeconds && bytes <= kMostCheckBytes) return true;
    setup_.bucket_notice += format_text(
        "--pack {}: not compared with documents alone, which takes {:.0f} s and {:.0f} GB: try "
        "the same model with fewer layers first\n",
        length_, seconds, bytes / 2e9);
    return false;
  }

  // The batch has the plan's rows from `first` on. `masks`: the fill of masks.
  Result<Outputs> outputs_of(const Graph& graph, PackPlan plan, int64_t first, int64_t masks) {
    Dataset& data = *setup_.data.train;
    std::vector<int32_t> lengths(static_cast<size_t>(data.samples()));
    for (const int64_t document : pair_) {
      lengths[static_cast<size_t>(document)] = static_cast<int32_t>(rows_.length(document));
    }
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < batch_; ++i) samples.push_back((first + i) % std::ssize(plan.ends));
    PackedRows made(data, std::move(lengths), std::move(plan),
                    packed_columns(graph, data, setup_.counts, length_, masks));
    Feeds feeds;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      std::vector<std::byte>& bytes = feeds[graph.inputs[i]];
      bytes.resize(graph.value(graph.inputs[i]).desc.bytes());
      OFSDP_RETURN_IF_ERROR(made.read_rows(static_cast<int>(i), samples, bytes.data()));
    }
    for (const Parameter& p : graph.parameters) {
      if (graph.value(p.value).kind != ValueKind::kParameter) continue;
      OFSDP_RETURN_IF_ERROR(read_weight(setup_.source->file_of(p), graph, p, feeds[p.value]));
    }
    return run_forward(graph, std::move(feeds));
  }

  // `count` tokens from each place on, counted through all rows.
  Status compare_all(const Graph& graph, const Outputs& packed, int64_t at, const Outputs& single,
                     int64_t alone_at, int64_t count) const {
    bool compared = false;
    for (const auto& [name, values] : packed) {
      const Shape& shape = graph.value(graph.find(name)).desc.shape;
      const bool by_row = shape.rank() > 1 && shape[0] == batch_ && shape[1] == length_;
      const bool by_token = shape.rank() > 0 && shape[0] == batch_ * length_;
      if (!by_row && !by_token) continue;
      compared = true;
      const int64_t inner = shape.numel() / (batch_ * length_);
      const auto tokens = [&](const std::vector<float>& all, int64_t from) {
        return std::span(all).subspan(static_cast<size_t>(from * inner),
                                      static_cast<size_t>(count * inner));
      };
      OFSDP_RETURN_IF_ERROR(
          compare(graph, name, inner, tokens(values, at), tokens(single.at(name), alone_at)));
    }
    OFSDP_REJECT_IF(!compared,
                    "--pack {}: {}: expected an output of float32 with an entry for each token, "
                    "found none",
                    length_, graph.file);
    return {};
  }

  Status compare(const Graph& graph, const std::string& name, int64_t inner,
                 std::span<const float> together, std::span<const float> alone) const {
    float largest = 0;
    for (const float number : alone) largest = std::max(largest, std::abs(number));
    for (size_t i = 0; i < alone.size(); ++i) {
      const double x = together[i], y = alone[i];
      if (std::abs(x - y) <= kPackedTolerance * static_cast<double>(largest)) continue;
      return input_error(
          "--pack {}: {}: output '{}': expected the same numbers for a document in a row with "
          "another and alone, found {:.6g} and {:.6g} at its token {}: {}",
          length_, graph.file, name, x, y, static_cast<int64_t>(i) / inner, lack(graph));
    }
    return {};
  }

  static std::string lack(const Graph& graph) {
    const bool masked = std::ranges::any_of(
        graph.inputs, [&](ValueId id) { return is_mask(graph.value(id).name); });
    return masked ? "the model mixes tokens, or counts positions, where no attention is recognized"
                  : "the model has no mask, so tokens see padding, or it mixes tokens where no "
                    "attention is recognized";
  }

  const int64_t length_, batch_;
  ModelSetup& setup_;
  const PackedRows& rows_;
  std::vector<int64_t> pair_;
};

}  // namespace

Status check_packed(const Options& options, ModelSetup& setup) {
  return PackingCheck(options, setup).run();
}

}  // namespace ofsdp::runtime

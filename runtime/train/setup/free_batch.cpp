#include "runtime/train/setup/free_batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "importer/file/tensor_record.h"
#include "kernels/base/status.h"
#include "runtime/engine/forward.h"

namespace ofsdp::runtime {
namespace {

// Kernels may sum in another order for another batch.
constexpr double kTolerance = 1e-4;  // of a value's largest number
constexpr double kSmallest = 1e-6;

using Numbers = std::vector<double>;

std::string count_text(int64_t count) {
  return count == 1 ? "one" : count == 2 ? "two" : std::to_string(count);
}

struct Values {
  Shape shape;
  Numbers numbers;
};

// Numbers of samples together and of each alone that differ.
struct Difference {
  double together = 0, alone = 0;
  int64_t element = 0;
  std::string shapes = {};  // if these differ, in place of numbers
};

// Compares a value of several samples with each sample's own, along the axis that is as many times
// as long.
class ValueComparison {
 public:
  ValueComparison(const Values& all, const std::vector<Values>& each, bool floats)
      : all_(all), each_(each), count_(std::ssize(each)), floats_(floats) {
    for (const Values& one : each) {
      for (const double number : one.numbers) {
        if (std::isfinite(number)) largest_ = std::max(largest_, std::abs(number));
      }
    }
  }

  std::optional<Difference> find() const {
    const std::optional<int> axis = sample_axis();
    if (!axis)
      return Difference{.shapes = format_text("{} and {}", all_.shape.text(), alone().text())};
    const auto blocks = along(*axis, false);
    if (!blocks || *axis < 0) return blocks;
    return along(*axis, true) ? blocks : std::nullopt;
  }

 private:
  const Shape& alone() const { return each_[0].shape; }

  // Returns the axis; -1 if the value has no samples; nothing if the shapes do not fit.
  std::optional<int> sample_axis() const {
    if (all_.shape.rank() != alone().rank()) return {};
    int found = -1;
    for (int i = 0; i < alone().rank(); ++i) {
      if (all_.shape[i] == alone()[i]) continue;
      if (all_.shape[i] != count_ * alone()[i] || found >= 0) return {};
      found = i;
    }
    return found;
  }

  // `interleaved`: a sample's places lie between the others' ([time x batch]), not after them.
  std::optional<Difference> along(int axis, bool interleaved) const {
    const Shape& shape = alone();
    const int64_t size = axis < 0 ? 1 : shape[axis];
    const int64_t inner = axis < 0 ? shape.numel() : shape.numel(axis + 1, shape.rank());
    for (int64_t sample = 0; sample < count_; ++sample) {
      const Numbers& own = each_[static_cast<size_t>(sample)].numbers;
      for (int64_t i = 0; i < std::ssize(own); ++i) {
        const int64_t outer = i / (inner * size), at = i / inner % size;
        const int64_t place = interleaved ? at * count_ + sample : sample * size + at;
        const int64_t there = axis < 0 ? i : (outer * count_ * size + place) * inner + i % inner;
        const double x = all_.numbers[static_cast<size_t>(there)], y = own[static_cast<size_t>(i)];
        if (!close(x, y)) return Difference{x, y, there};
      }
    }
    return {};
  }

  bool close(double x, double y) const {
    if (x == y || (std::isnan(x) && std::isnan(y))) return true;
    return floats_ && std::abs(x - y) <= kTolerance * largest_ + kSmallest;
  }

  const Values& all_;
  const std::vector<Values>& each_;
  int64_t count_;
  bool floats_;
  double largest_ = 0;
};

class FreeBatchCheck {
 public:
  FreeBatchCheck(const FreeBatchGraphs& graphs, RowSource& rows, const ReadWeight& read)
      : graphs_(graphs), rows_(rows), read_(read) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(run_all());
    for (const ValueId id : graphs_.several.outputs) {
      const auto found = compare(id);
      if (found) return refuse(id, *found);
    }
    return ok_status();
  }

 private:
  // Both graphs, with copies at the outputs: an output may be a view or an input.
  Status run_all() {
    std::vector<int64_t> samples(static_cast<size_t>(graphs_.samples));
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i] = std::min(static_cast<int64_t>(i), rows_.samples() - 1);
    }
    OFSDP_RETURN_IF_ERROR(run_one(graphs_.several, samples, all_));
    each_.resize(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(run_one(graphs_.one, {samples[i]}, each_[i]));
    }
    return ok_status();
  }

  using Results = std::map<std::string, Values>;

  Status run_one(const Graph& graph, const std::vector<int64_t>& samples, Results& results) {
    Graph made = graph;
    for (ValueId& id : made.outputs) {
      const std::string name = made.value(id).name + ".compared";
      OFSDP_ASSIGN_OR_RETURN(id, GraphEditor(made).add1("ofsdp.Copy", name, {id}));
    }
    ForwardPass pass(made);
    OFSDP_RETURN_IF_ERROR(feed(made, samples, pass));
    OFSDP_RETURN_IF_ERROR(pass.run());
    for (size_t i = 0; i < made.outputs.size(); ++i) {
      const TensorDesc& desc = made.value(made.outputs[i]).desc;
      const auto bytes = pass.output(made.outputs[i]);
      Values& values = results[graph.value(graph.outputs[i]).name];
      values = {desc.shape, to_doubles(desc, bytes.data())};
    }
    return ok_status();
  }

  Status feed(const Graph& graph, const std::vector<int64_t>& samples, ForwardPass& pass) {
    for (const ValueId id : graph.inputs) {
      const Value& input = graph.value(id);
      const auto column = std::ranges::find(rows_.columns(), input.name, &BoundColumn::name);
      OFSDP_CHECK(column != rows_.columns().end(), "no column {}", input.name);
      std::vector<std::byte> bytes(input.desc.bytes());
      const auto index = static_cast<int>(column - rows_.columns().begin());
      OFSDP_RETURN_IF_ERROR(rows_.read_rows(index, samples, bytes.data()));
      pass.feed(id, bytes);
    }
    for (const Parameter& p : graph.parameters) {
      if (graph.value(p.value).kind != ValueKind::kParameter) continue;
      std::vector<std::byte>& bytes = weights_[p.name];
      if (bytes.empty()) OFSDP_RETURN_IF_ERROR(read_(p, bytes));
      pass.feed(p.value, bytes);
    }
    return ok_status();
  }

  std::optional<Difference> compare(ValueId id) const {
    const Value& value = graphs_.several.value(id);
    std::vector<Values> each;
    for (const Results& one : each_) each.push_back(one.at(value.name));
    return ValueComparison(all_.at(value.name), each, is_floating(value.desc.dtype)).find();
  }

  Status refuse(ValueId id, const Difference& found) {
    const std::string what =
        found.shapes.empty()
            ? format_text(
                  "expected the same numbers for {} samples together and for each alone, "
                  "found {:.6g} and {:.6g} at element {}",
                  count_text(graphs_.samples), found.together, found.alone, found.element)
            : format_text("expected one axis {} as long for {} samples, found {}",
                          graphs_.samples == 2 ? "twice" : format_text("{} times", graphs_.samples),
                          count_text(graphs_.samples), found.shapes);
    return input_error("--free-batch: {}: output '{}': {}{}", graphs_.several.file,
                       graphs_.several.value(id).name, what, first_node());
  }

  // Runs both graphs again with every value as an output. Returns the first node that differs.
  std::string first_node() {
    FreeBatchGraphs graphs = graphs_;
    std::vector<std::pair<ValueId, const Node*>> made;
    for (const Node& node : graphs_.several.nodes) {
      for (const ValueId id : node.outputs) {
        if (id == 0 || graphs.one.value(id).name != graphs.several.value(id).name) continue;
        made.emplace_back(id, &node);
      }
    }
    graphs.one.outputs.clear();
    for (const auto& [id, node] : made) graphs.one.outputs.push_back(id);
    graphs.several.outputs = graphs.one.outputs;
    FreeBatchCheck all(graphs, rows_, read_);
    if (!all.run_all().ok()) return "";
    for (const auto& [id, node] : made) {
      if (!all.compare(id)) continue;
      return format_text("; the first to differ is node '{}' ({})", node->name,
                         node->op->full_name());
    }
    return "";
  }

  const FreeBatchGraphs& graphs_;
  RowSource& rows_;
  const ReadWeight& read_;
  std::map<std::string, std::vector<std::byte>> weights_;
  Results all_;
  std::vector<Results> each_;
};

}  // namespace

Result<FreeBatchGraphs> free_batch_graphs(int64_t fixed,
                                          const std::function<Result<Graph>(int64_t)>& made) {
  const int64_t samples = std::max<int64_t>(fixed, 2);
  const auto prefix = [](int64_t count) {
    return format_text("--free-batch: {} sample{}", count_text(count), count == 1 ? "" : "s");
  };
  OFSDP_ASSIGN_OR_RETURN(Graph one, prefixed(prefix(1), made(1)));
  OFSDP_ASSIGN_OR_RETURN(Graph several, prefixed(prefix(samples), made(samples)));
  return FreeBatchGraphs{std::move(one), std::move(several), samples};
}

Status check_free_batch(const FreeBatchGraphs& graphs, RowSource& rows, const ReadWeight& read) {
  return FreeBatchCheck(graphs, rows, read).run();
}

Status read_weight(const OnnxFile& file, const Graph& graph, const Parameter& p,
                   std::vector<std::byte>& bytes) {
  const Initializer& initializer = file.initializers()[static_cast<size_t>(p.initializer)];
  const TensorDesc& desc = graph.value(p.value).desc;
  bytes.resize(desc.bytes());
  if (p.raw) return file.read_raw(initializer, 0, bytes);
  std::vector<float> numbers(static_cast<size_t>(desc.numel()));
  OFSDP_RETURN_IF_ERROR(file.read(initializer, 0, numbers));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return ok_status();
}

}  // namespace ofsdp::runtime

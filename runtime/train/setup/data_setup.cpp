#include "runtime/train/setup/data_setup.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "fsdp/comm/rank_identity.h"
#include "importer/passes/sample_order.h"
#include "runtime/data/row_source.h"
#include "runtime/train/setup/image_inputs.h"
#include "runtime/train/setup/like_lengths.h"
#include "runtime/train/setup/packing.h"

namespace ofsdp::runtime {
namespace {

std::vector<std::string> wanted_names(const Graph& graph, const std::set<std::string>& labels) {
  std::vector<std::string> names;
  for (ValueId id : graph.inputs) names.push_back(graph.value(id).name);
  names.insert(names.end(), labels.begin(), labels.end());
  return names;
}

std::string beside_model(const Options& options, const char* name) {
  return (std::filesystem::path(options.model).parent_path() / name).string();
}

Result<DataSpec> find_given_data(const Options& options) {
  const DataChoice& choice = options.run.data;
  switch (choice.kind) {
    case DataChoice::Kind::kSynthetic: {
      DataSpec spec;
      spec.synthetic = true;
      return spec;
    }
    case DataChoice::Kind::kPath:
      return read_data_spec(choice.path);
    case DataChoice::Kind::kInline:
      return parse_data_yaml(choice.yaml, choice.base_folder, choice.origin);
    default:
      break;
  }
  const std::string folder = beside_model(options, "data");
  std::error_code error;
  if (std::filesystem::exists(folder, error)) return read_data_spec(folder);
  return input_error("--data: {} beside the model is not there; give --data FOLDER or --data FILE",
                     folder);
}

// An evaluation reads one set of rows, as training and evaluation data alike: --eval-data, else the
// evaluation part of --data, else all of --data.
Result<DataSpec> find_evaluated_data(const Options& options) {
  const DataChoice& eval = options.run.eval_data;
  DataSpec spec;
  if (eval.kind == DataChoice::Kind::kPath) {
    OFSDP_ASSIGN_OR_RETURN(spec.train, read_eval_spec(eval.path));
  } else {
    OFSDP_ASSIGN_OR_RETURN(DataSpec given, find_given_data(options));
    OFSDP_REJECT_IF(given.synthetic,
                    "--data synthetic: expected data with an end for an evaluation");
    const bool own_part = given.eval && eval.kind != DataChoice::Kind::kNone;
    spec.train = own_part ? *std::move(given.eval) : std::move(given.train);
  }
  spec.eval = spec.train;
  return spec;
}

}  // namespace

Result<DataSpec> find_data(const Options& options) {
  return options.command == Command::kEval ? find_evaluated_data(options)
                                           : find_given_data(options);
}

Status fit_data(DataSpec& spec, const Options& options, const Graph& graph,
                const Communicator& communicator) {
  constexpr int kMostThreads = 16;
  const int64_t cores = options.launch.threads.value_or(
      cores_per_rank(std::max(1, communicator.ranks_on_each_host())));
  const auto threads =
      static_cast<int>(options.run.loader_threads.value_or(std::min<int64_t>(cores, kMostThreads)));
  OFSDP_RETURN_IF_ERROR(fit_images(spec.train, graph, options.losses, threads));
  return spec.eval ? fit_images(*spec.eval, graph, options.losses, threads) : ok_status();
}

namespace {

// A file of names has one a line; those that the model brings stand elsewhere, too.
Status check_class_names(const Dataset& data, const std::string& label, const ClassNames& known) {
  for (const std::string& name : data.classes(label)) {
    const bool line = name.find_first_of("\r\n") == std::string::npos;
    OFSDP_REJECT_IF(!line && std::ranges::count(known.names, name) == 0,
                    "{}: column '{}': expected names of classes without a line break, found '{}': "
                    "write it in one line",
                    data.path_of(label), escaped(label), escaped(name));
  }
  return {};
}

// Returns the training part of an evaluation's data; none if its rows are that part.
Result<std::optional<ColumnSet>> training_part(const Options& options, const Graph& graph,
                                               const Communicator& communicator) {
  const DataChoice::Kind kind = options.run.data.kind, eval = options.run.eval_data.kind;
  std::error_code error;
  const bool given = kind == DataChoice::Kind::kPath || kind == DataChoice::Kind::kInline ||
                     (kind == DataChoice::Kind::kComputed &&
                      std::filesystem::exists(beside_model(options, "data"), error));
  if (options.command != Command::kEval || !given) return std::optional<ColumnSet>();
  OFSDP_ASSIGN_OR_RETURN(DataSpec spec, find_given_data(options));
  const bool own_part = spec.eval && eval != DataChoice::Kind::kNone;
  if (eval != DataChoice::Kind::kPath && !own_part) return std::optional<ColumnSet>();
  OFSDP_RETURN_IF_ERROR(fit_data(spec, options, graph, communicator));
  return std::optional(std::move(spec.train));
}

// Returns the names for labels of `rows`: those of the training part, which numbers the classes, if
// it has names and `known` need not count. Labels of `rows` that are numbers stay what they are.
Result<ClassNames> names_for(const ColumnSet& rows, const std::optional<ColumnSet>& training,
                             const std::string& label, const ClassNames& known,
                             Communicator& communicator, MemoryLedger& ledger) {
  const bool asks =
      training && !known.binding && training->find(label) != nullptr && rows.find(label) != nullptr;
  if (!asks) return known;
  ColumnSet own = *training;
  own.take_classes(label, known);
  OFSDP_ASSIGN_OR_RETURN(const auto labels, Dataset::open(own, {label}, communicator, ledger));
  std::vector<std::string> names = labels->classes(label);
  if (names.empty()) return known;
  return ClassNames{std::move(names), training->origin, /*binding=*/true};
}

// Pads rows to the training rows' length if neither part has a length of its own.
void pad_alike(ColumnSet& eval, const ColumnSet& train, const Dataset& opened) {
  for (ColumnSpec& column : eval.columns) {
    const ColumnSpec* const same = train.find(column.name);
    const ColumnLayout* const rows = opened.stored(column.name);
    const bool free = column.padding && !column.padding->to && same != nullptr && same->padding &&
                      !same->padding->to && rows != nullptr && rows->row.rank() > 0;
    if (free) column.padding->to = rows->row[0];
  }
}

}  // namespace

Result<DataSetup> open_data(DataSpec spec, const Options& options, const Graph& graph,
                            const std::set<std::string>& labels, const ClassNames& known,
                            std::set<std::string> taught, Communicator& communicator,
                            MemoryLedger& ledger) {
  DataSetup data;
  data.spec = std::move(spec);
  data.taught = std::move(taught);
  auto names = wanted_names(graph, labels);
  OFSDP_ASSIGN_OR_RETURN(const auto training, training_part(options, graph, communicator));
  for (const std::string& label : labels) {
    OFSDP_ASSIGN_OR_RETURN(const ClassNames named, names_for(data.spec.train, training, label,
                                                             known, communicator, ledger));
    data.spec.train.take_classes(label, named);
  }
  std::string bucket_by = options.run.bucket_by;
  const bool packs = options.run.pack.has_value();
  if (packs) {
    std::erase_if(names, [&](const auto& name) { return is_made_up(data.spec.train, name); });
    OFSDP_ASSIGN_OR_RETURN(bucket_by, packed_by(options, data.spec, graph));
  }
  OFSDP_REJECT_IF(data.spec.synthetic && !bucket_by.empty(),
                  "--bucket-by {}: expected rows of files, found --data synthetic", bucket_by);
  if (!data.spec.synthetic) {
    auto train_names = names;
    if (!bucket_by.empty()) {
      OFSDP_RETURN_IF_ERROR(add_lengths(bucket_by, data.spec.train, train_names));
    }
    OFSDP_ASSIGN_OR_RETURN(data.train,
                           Dataset::open(data.spec.train, train_names, communicator, ledger));
    for (const std::string& label : labels) {
      OFSDP_RETURN_IF_ERROR(check_class_names(*data.train, label, known));
    }
  }
  const bool evaluates = options.command == Command::kEval;  // find_data has chosen its rows
  const DataChoice::Kind eval = options.run.eval_data.kind;
  if (eval == DataChoice::Kind::kNone && !evaluates) data.spec.eval.reset();
  if (eval == DataChoice::Kind::kPath && !evaluates) {
    OFSDP_ASSIGN_OR_RETURN(data.spec.eval, read_eval_spec(options.run.eval_data.path));
    OFSDP_RETURN_IF_ERROR(fit_data(data.spec, options, graph, communicator));
  }
  for (const std::string& label : labels) {
    if (!data.spec.eval) break;
    const auto classes = data.train ? data.train->classes(label) : std::vector<std::string>();
    const bool named = !classes.empty();
    data.spec.eval->take_classes(
        label, named ? ClassNames{classes, data.spec.train.origin, /*binding=*/true} : known);
  }
  auto eval_names = names;
  if (data.spec.eval && packs) {
    OFSDP_RETURN_IF_ERROR(add_lengths(bucket_by, *data.spec.eval, eval_names));
  } else if (data.spec.eval && data.train) {
    pad_alike(*data.spec.eval, data.spec.train, *data.train);
  }
  const bool other_part = data.train && data.spec.train.split && eval != DataChoice::Kind::kPath;
  if (data.spec.eval && other_part) {
    OFSDP_ASSIGN_OR_RETURN(data.eval, Dataset::open_part(*data.spec.eval, *data.train, ledger));
  } else if (data.spec.eval) {
    std::erase_if(eval_names, [&](const std::string& name) { return data.taught.contains(name); });
    OFSDP_ASSIGN_OR_RETURN(data.eval,
                           Dataset::open(*data.spec.eval, eval_names, communicator, ledger));
  }
  return data;
}

namespace {

// Reads a whole .npy file as `dtype`.
Result<ConstantPtr> read_tensor(const std::string& path, DType dtype, Communicator& communicator,
                                MemoryLedger& ledger) {
  ColumnSpec spec;
  spec.path = path;
  OFSDP_ASSIGN_OR_RETURN(const ColumnFile file, ColumnFile::open(spec, communicator, ledger));
  const ColumnLayout& layout = file.layout();
  const auto converter = Converter::between(layout.dtype, dtype, {});
  OFSDP_REJECT_IF(!converter, "{}: expected {}, found {}", path, dtype_name(dtype),
                  dtype_name(layout.dtype));
  std::vector<int64_t> axes{layout.count};
  axes.insert(axes.end(), layout.row.axes().begin(), layout.row.axes().end());
  Constant made{{dtype, Shape(axes)}, {}};
  made.bytes.resize(made.desc.bytes());
  std::vector<std::byte> stored(static_cast<size_t>(layout.count) * layout.row_bytes());
  OFSDP_RETURN_IF_ERROR(file.read(layout.first_byte, stored));
  const auto count = static_cast<size_t>(made.desc.numel());
  const size_t good = converter->run(stored.data(), count, made.bytes.data());
  OFSDP_REJECT_IF(good < count, "{}: element {} does not fit {}", path, good, dtype_name(dtype));
  return std::make_shared<const Constant>(std::move(made));
}

}  // namespace

namespace {

// Returns the number that --input gives to every element; nothing for a file.
std::optional<double> input_number(const std::string& text) {
  if (text == "zeros") return 0;
  if (text == "ones") return 1;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

}  // namespace

std::map<std::string, double> input_numbers(const Options& options) {
  std::map<std::string, double> numbers;
  for (const auto& [name, text] : options.inputs) {
    if (const auto number = input_number(text)) numbers[name] = *number;
  }
  return numbers;
}

InputSizes column_sizes(const DataSpec& spec, const Options& options, Communicator& communicator,
                        MemoryLedger& ledger) {
  std::map<std::string, Shape> rows = options.sample_shapes;
  if (!spec.synthetic) {
    const auto names = spec.train.names();
    if (std::ranges::count(names, "") > 0) return {};  // images, which the graph has to name
    const auto data = Dataset::open(spec.train, names, communicator, ledger);
    if (!data.ok()) return {};
    rows.clear();
    for (const std::string& name : names) rows[name] = (*data)->stored(name)->row;
  }
  InputSizes sizes;
  for (const auto& [name, row] : rows) {
    std::vector<int64_t> axes = row.axes();
    const auto given = options.batch_axes.find(name);
    const int64_t batch = given == options.batch_axes.end() ? 0 : given->second;
    if (batch != kNoBatchAxis) {
      if (batch < 0 || batch > static_cast<int64_t>(axes.size())) continue;
      axes.insert(axes.begin() + batch, -1);
    }
    sizes[name] = std::move(axes);
  }
  return sizes;
}

Result<InputValues> input_values(const Options& options, const Graph& graph,
                                 Communicator& communicator, MemoryLedger& ledger) {
  InputValues values;
  for (const auto& [name, text] : options.inputs) {
    const ValueId id = graph.find(name);
    const DType dtype = id == 0 ? DType::kFloat32 : graph.value(id).desc.dtype;
    InputValue& value = values[name];
    if (const auto number = input_number(text)) {
      value.number = *number;
    } else {
      OFSDP_ASSIGN_OR_RETURN(
          value.tensor,
          prefixed("--input " + name, read_tensor(text, dtype, communicator, ledger)));
    }
  }
  return values;
}

namespace {

// Returns a made-up sample's shape: the file's, with open axes from --sample-shape.
Result<Shape> synthetic_row(const Graph& graph, const Value& input, const Options& options) {
  const auto given = options.sample_shapes.find(input.name);
  const Shape* asked = given == options.sample_shapes.end() ? nullptr : &given->second;
  const auto own = static_cast<int>(input.declared.size()) - 1;
  std::vector<int64_t> axes;
  for (int i = 0; i < own; ++i) {
    const Dim& dim = input.declared[static_cast<size_t>(i + 1)];
    const int64_t size = asked != nullptr && asked->rank() == own ? (*asked)[i] : dim.size;
    OFSDP_REJECT_IF(size < 0 && asked == nullptr,
                    "--data synthetic: {}: axis {} of input '{}' has no fixed size ('{}'): "
                    "--sample-shape {}=AxB gives the axes of one sample",
                    graph.file, i + 1, input.name, dim.symbol, input.name);
    axes.push_back(size);
  }
  OFSDP_REJECT_IF(asked != nullptr && asked->rank() != own,
                  "--sample-shape {}: {}: expected {} axes of one sample, found {}", input.name,
                  graph.file, own, asked->text());
  return Shape(std::move(axes));
}

// A number of a table also feeds axes of 1, as Dataset::bind takes it.
Shape stored_row(const Dataset& data, const Value& input) {
  Shape row = data.row_shape(input.name);
  const size_t own = input.declared.empty() ? 0 : input.declared.size() - 1;
  const bool other = !input.declared.empty() && static_cast<size_t>(row.rank()) != own;
  const bool one = other && row.numel() == 1 && data.stored(input.name)->of_text;
  const auto fits = [](const Dim& dim) { return dim.size == 1 || dim.size < 0; };
  if (!one || !std::all_of(input.declared.begin() + 1, input.declared.end(), fits)) return row;
  return Shape(std::vector<int64_t>(own, 1));
}

}  // namespace

Result<std::map<std::string, Shape>> input_rows(const DataSetup& data, const Graph& graph,
                                                const Options& options) {
  std::map<std::string, Shape> rows;
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (data.train != nullptr) {
      // Positions that the data lack are made.
      const bool made = data.train->stored(input.name) == nullptr;
      if (!made) rows[input.name] = stored_row(*data.train, input);
      continue;
    }
    OFSDP_ASSIGN_OR_RETURN(rows[input.name], synthetic_row(graph, input, options));
  }
  return rows;
}

namespace {

// Returns the length of the axis that a Gather indexes with the input; 0 if none does.
int64_t gathered_axis(const Graph& graph, ValueId input) {
  const auto storage = [&] {
    std::vector<ValueId> same(graph.values.size());
    for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<ValueId>(i);
    for (const Node& node : graph.nodes) {
      const std::string op = node.op->full_name();
      if (node.op->view || op == "Cast" || op == "Transpose") {
        same[static_cast<size_t>(node.outputs[0])] = same[static_cast<size_t>(node.inputs[0])];
      }
    }
    return same;
  }();
  for (const Node& node : graph.nodes) {
    if (node.op->full_name() != "Gather" || storage[static_cast<size_t>(node.inputs[1])] != input)
      continue;
    const Shape& shape = graph.value(node.inputs[0]).desc.shape;
    const int64_t axis = node.attributes.i("axis", 0);
    return shape[static_cast<int>(axis < 0 ? axis + shape.rank() : axis)];
  }
  return 0;
}

SyntheticColumn synthetic_column(const Graph& graph, ValueId id, std::span<const LossCount> counts,
                                 std::span<const LossSpec> losses) {
  const Value& input = graph.value(id);
  std::vector<int64_t> row(input.desc.shape.axes().begin() + 1, input.desc.shape.axes().end());
  SyntheticColumn column{input.name, input.desc.dtype, Shape(std::move(row)),
                         SyntheticKind::kNormal, 1};
  const bool appended = input.declared.empty();  // the label column of an attached loss
  if (input.desc.dtype == DType::kBool) {
    column.kind = SyntheticKind::kOnes;
  } else if (is_integer(input.desc.dtype)) {
    const auto count = std::ranges::find_if(
        counts, [&](const LossCount& one) { return one.by_label && one.labels == input.name; });
    column.below = count != counts.end() ? count->classes : gathered_axis(graph, id);
    const bool sequence = std::ranges::any_of(losses, [&](const LossSpec& loss) {
      return loss_traits(loss.kind).of_sequences && loss.labels == input.name;
    });
    column.kind = column.below > 0                               ? SyntheticKind::kBelow
                  : sequence                                     ? SyntheticKind::kOnes
                  : input.name.find("mask") != std::string::npos ? SyntheticKind::kOnes
                                                                 : SyntheticKind::kZeros;
  } else if (appended) {
    const bool bits = std::ranges::any_of(losses, [&](const LossSpec& loss) {
      const PredictionKind reads = loss_traits(loss.kind).reads;
      const bool of_two =
          reads == PredictionKind::kLogits || reads == PredictionKind::kProbabilities;
      return of_two && loss.labels == input.name;
    });
    column.kind = bits ? SyntheticKind::kBits : SyntheticKind::kUniform;
  }
  return column;
}

}  // namespace

Status bind_data(DataSetup& data, const Graph& finished, uint64_t seed,
                 std::span<const LossCount> counts, std::span<const LossSpec> losses) {
  if (data.spec.synthetic) {
    std::vector<SyntheticColumn> columns;
    for (ValueId id : finished.inputs) {
      columns.push_back(synthetic_column(finished, id, counts, losses));
    }
    data.synthetic = std::make_unique<SyntheticData>(seed, columns);
  }
  const bool packs = finished.find(kSegmentsInput) != 0;
  const auto is_index = [](DType dtype) {
    return dtype == DType::kInt64 || dtype == DType::kInt32;
  };
  std::vector<WantedColumn> wanted;
  for (ValueId id : finished.inputs) {
    const Value& input = finished.value(id);
    std::vector<int64_t> dims;
    for (size_t i = 1; i < input.declared.size(); ++i) dims.push_back(input.declared[i].size);
    const bool label = input.declared.empty();
    const auto& axes = input.desc.shape.axes();
    if (label) dims.assign(axes.begin() + 1, axes.end());
    const bool classes = std::ranges::any_of(
        counts, [&](const LossCount& one) { return one.by_label && one.labels == input.name; });
    if (packs) {
      if (data.train->stored(input.name) == nullptr) continue;
      wanted.push_back({input.name,
                        input.desc.dtype,
                        {-1},
                        false,
                        classes,
                        is_index(input.desc.dtype) ? gathered_axis(finished, id) : 0});
      continue;
    }
    const bool indexes = is_index(input.desc.dtype);
    wanted.push_back({input.name, input.desc.dtype, dims, label, classes,
                      indexes ? gathered_axis(finished, id) : 0});
  }
  if (data.train != nullptr) OFSDP_RETURN_IF_ERROR(data.train->bind(wanted));
  if (data.eval == nullptr) return {};
  // One graph reads both parts: rows along an axis that the file leaves open are alike, too.
  for (WantedColumn& column : wanted) {
    if (data.train == nullptr || packs) break;
    for (const BoundColumn& trained : data.train->columns()) {
      if (trained.name == column.name && !column.flat) column.dims = trained.row.axes();
    }
  }
  std::erase_if(wanted, [&](const WantedColumn& one) { return data.taught.contains(one.name); });
  OFSDP_RETURN_IF_ERROR(data.eval->bind(wanted));
  return {};
}

}  // namespace ofsdp::runtime

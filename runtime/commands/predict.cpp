#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"
#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/sample_order.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "importer/write/model_output.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/rows_writer.h"
#include "runtime/data/column_file.h"
#include "runtime/engine/forward.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/file_answers.h"
#include "runtime/train/setup/checkpoint_values.h"
#include "runtime/train/setup/class_names.h"
#include "runtime/train/setup/data_setup.h"
#include "runtime/train/setup/free_batch.h"
#include "runtime/train/setup/model_setup.h"
#include "runtime/train/setup/opened_model.h"
#include "runtime/train/setup/text_lengths.h"

namespace ofsdp::runtime {
namespace {

class Predictor {
 public:
  Predictor(const Options& options, const Registry& registry)
      : options_(options), registry_(registry) {}

  Status run() {
    OFSDP_RETURN_IF_ERROR(check_output());
    OFSDP_ASSIGN_OR_RETURN(model_, model_file());
    OFSDP_ASSIGN_OR_RETURN(communicator_, connect_ranks({}, std::chrono::seconds(60)));
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file, open_file());
    OFSDP_ASSIGN_OR_RETURN(data_.spec, find_rows());
    OFSDP_RETURN_IF_ERROR(import(file));
    OFSDP_RETURN_IF_ERROR(choose_outputs());
    OFSDP_RETURN_IF_ERROR(open_rows());
    OFSDP_RETURN_IF_ERROR(find_samples());
    OFSDP_RETURN_IF_ERROR(check_open_batch(file));
    OFSDP_RETURN_IF_ERROR(write_whole(options_.files.output,
                                      [&](const std::string& path) { return write(file, path); }));
    say();
    return {};
  }

 private:
  // --- what is asked for

  std::string extension() const {
    return std::filesystem::path(options_.files.output).extension().string();
  }

  Status check_output() const {
    const std::string& path = options_.files.output;
    OFSDP_REJECT_IF(path.empty(),
                    "fsdp-run predict: expected -o FILE.npy, .npz or .csv, found none");
    const std::string ending = extension();
    const bool known = ending == ".npy" || ending == ".npz" || ending == ".csv";
    OFSDP_REJECT_IF(!known, "-o {}: expected a file .npy, .npz or .csv", path);
    return check_output_path(path).with_prefix("-o");
  }

  // Returns the model file, which of a run's folder is the one for inference, if there is one.
  Result<std::string> model_file() const {
    const std::string& model = options_.model;
    if (!is_folder(model)) return model;
    for (const char* name : {kInferenceModel, "model.onnx"}) {
      if (is_file(join_path(model, name))) return join_path(model, name);
    }
    return input_error(
        "{}: expected a model or the folder of a run, found a folder without model.inference.onnx "
        "and model.onnx",
        model);
  }

  // Returns all rows of --data, or of --eval-data if only that is given.
  Result<DataSpec> find_rows() const {
    DataSpec spec;
    const DataChoice& eval = options_.run.eval_data;
    if (options_.run.data.kind == DataChoice::Kind::kComputed &&
        eval.kind == DataChoice::Kind::kPath) {
      OFSDP_ASSIGN_OR_RETURN(spec.train, read_eval_spec(eval.path));
      return spec;
    }
    OFSDP_ASSIGN_OR_RETURN(spec, find_data(options_));
    OFSDP_REJECT_IF(spec.synthetic, "--data synthetic: expected data with an end for a prediction");
    if (spec.train.columns.empty() && spec.eval) spec.train = *spec.eval;
    spec.eval.reset();
    spec.train.split.reset();  // every row
    return spec;
  }

  // --- the graph

  // Returns the model as --resume, --lora, --replace-head and the like change it.
  Result<OnnxFile> open_file() {
    options_.model = model_;
    OFSDP_RETURN_IF_ERROR(check_adapter_options(options_));
    OFSDP_ASSIGN_OR_RETURN(const std::string warning, other_alpha_warning(options_));
    if (!warning.empty()) print_lines(stderr, format_text("fsdp-run: warning: {}\n", warning));
    OFSDP_ASSIGN_OR_RETURN(const std::string weights, weights_to_start_from(options_));
    std::optional<SavedRun> saved;
    if (weights.empty() && !options_.checkpoint.resume.empty()) {
      OFSDP_ASSIGN_OR_RETURN(saved, checkpoint());
    }
    std::vector<std::string> names = named_weights(options_);
    if (saved) names.insert(names.end(), saved->trained.begin(), saved->trained.end());
    OFSDP_ASSIGN_OR_RETURN(OnnxFile file,
                           OnnxFile::open(weights.empty() ? model_ : weights, names));
    const ModelEdits given = edits_of(options_);
    const ModelEdits edits = saved ? edits_with(*saved, given) : given;
    if (!edits.any()) return valued(std::move(file), edits, saved);
    if (edits.added && options_.predictions.empty()) options_.predictions = {edits.added->name};
    OFSDP_ASSIGN_OR_RETURN(EditedModel edited, edit_model(std::move(file), edits));
    return valued(std::move(edited.file), edits, saved);
  }

  Result<SavedRun> checkpoint() {
    OFSDP_ASSIGN_OR_RETURN(auto checkpoint, find_checkpoint(options_, *communicator_, nullptr));
    OFSDP_REJECT_IF(checkpoint == nullptr,
                    "--resume latest: expected a complete checkpoint in {}, found none",
                    options_.checkpoint.dir);
    return saved_run(std::move(checkpoint), options_.optimizer.ema_use);
  }

  Result<OnnxFile> valued(OnnxFile file, const ModelEdits& edits,
                          const std::optional<SavedRun>& saved) {
    if (!saved) return file;
    OFSDP_RETURN_IF_ERROR(take_values(*saved, edits, file));
    rules_.saved = saved->trained;
    saved_classes_ = saved->classes;
    return file;
  }

  Status import(OnnxFile& file) {
    const auto numbers = input_numbers(options_);
    const auto read = [&](InputSizes sizes) {
      file.fix_inputs(std::move(sizes), numbers);
      return import_onnx(file, {registry_, &ort_operators()});
    };
    Result<Graph> imported = read({});
    if (!imported.ok() && lacks_known_numbers(imported.error())) {
      imported = read(column_sizes(data_.spec, options_, *communicator_, ledger_));
    }
    if (!imported.ok()) return std::move(imported).status();
    OFSDP_RETURN_IF_ERROR(check_names(*imported, options_.batch_axes));
    if (options_.free_batch) {
      OFSDP_ASSIGN_OR_RETURN(OpenBatch open, with_open_batch(*imported, options_.batch_axes));
      *imported = std::move(open.graph);
      opened_batch_ = open.fixed;
    }
    OFSDP_ASSIGN_OR_RETURN(const InputValues values,
                           input_values(options_, *imported, *communicator_, ledger_));
    OFSDP_ASSIGN_OR_RETURN(const Graph fed, with_values(*imported, values));
    OFSDP_RETURN_IF_ERROR(fit_data(data_.spec, options_, fed, *communicator_));
    OFSDP_ASSIGN_OR_RETURN(const Graph chosen, choose_candidates(fed, rules_));
    OFSDP_ASSIGN_OR_RETURN(const PastFree whole, without_past(chosen, data_.spec.train.names()));
    unmoved_ = whole.graph;
    OFSDP_ASSIGN_OR_RETURN(graph_, with_samples_first(unmoved_, options_.batch_axes));
    return {};
  }

  // Cuts the graph at the wanted outputs.
  Status choose_outputs() {
    std::vector<ValueId> wanted;
    if (options_.predictions.empty()) {
      for (const ValueId id : graph_.outputs) {
        const std::string lacks = missing_column(id);
        if (lacks.empty()) {
          wanted.push_back(id);
        } else {
          leave_out(graph_.value(id).name, format_text("there is no column '{}'", escaped(lacks)));
        }
      }
    }
    for (const std::string& name : options_.predictions) {
      OFSDP_ASSIGN_OR_RETURN(const ValueId id, named_output(name));
      if (std::ranges::find(wanted, id) == wanted.end()) wanted.push_back(id);
    }
    OFSDP_REJECT_IF(wanted.empty(), "{}: expected an output whose columns {} has, found none: {}",
                    graph_.file, data_.spec.train.origin, joined(left_out_, "; "));
    cut(graph_, wanted);
    cut(unmoved_, wanted);
    return {};
  }

  Result<ValueId> named_output(const std::string& name) const {
    std::vector<std::string> names;
    for (const ValueId id : graph_.outputs) names.push_back(graph_.value(id).name);
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      return input_error("--prediction {}: {} has no such output; it has {}{}", name, graph_.file,
                         joined(names, ", "), did_you_mean(name, names));
    }
    const ValueId id = graph_.outputs[static_cast<size_t>(found - names.begin())];
    const std::string lacks = missing_column(id);
    if (lacks.empty()) return id;
    return input_error("--prediction {}: expected a column '{}' in {}, found {}", name, lacks,
                       data_.spec.train.origin, joined(data_.spec.train.names(), ", "));
  }

  // Returns an input that the output needs and no column gives; empty: none.
  std::string missing_column(ValueId output) const {
    Graph part = graph_;
    cut(part, {output});
    for (const ValueId id : part.inputs) {
      if (data_.spec.train.find(part.value(id).name) == nullptr) return part.value(id).name;
    }
    return "";
  }

  static void cut(Graph& graph, const std::vector<ValueId>& wanted) {
    graph.outputs = wanted;
    prune(graph, wanted);
    std::set<ValueId> read(wanted.begin(), wanted.end());
    for (const Node& node : graph.nodes) read.insert(node.inputs.begin(), node.inputs.end());
    std::erase_if(graph.inputs, [&](ValueId id) { return !read.contains(id); });
  }

  void leave_out(const std::string& output, const std::string& why) {
    left_out_.push_back(format_text("'{}' is left out: {}", escaped(output), why));
  }

  // --- rows

  Status open_rows() {
    std::vector<std::string> names;
    for (const ValueId id : graph_.inputs) names.push_back(graph_.value(id).name);
    OFSDP_REJECT_IF(names.empty(), "{}: expected outputs that read a column, found none",
                    graph_.file);
    OFSDP_ASSIGN_OR_RETURN(data_.train,
                           Dataset::open(data_.spec.train, names, *communicator_, ledger_));
    OFSDP_ASSIGN_OR_RETURN(rows_, input_rows(data_, graph_, options_));
    const std::vector<std::string> whole = whole_inputs(unmoved_, rows_);
    if (!whole.empty()) graph_ = with_whole_samples(unmoved_, whole);
    const auto without = [](const auto& given) { return given.second == kNoBatchAxis; };
    whole_ = !whole.empty() || std::ranges::any_of(options_.batch_axes, without);
    OFSDP_RETURN_IF_ERROR(check_batch_axes(graph_, rows_, options_.batch_axes));
    const int64_t fixed = fixed_batch(graph_);
    const int64_t asked = options_.batch.batch_size.value.value_or(BatchSizes().batch_size);
    samples_ = data_.train->stored(names[0])->count;
    batch_ = fixed > 0 ? fixed : std::min(asked, samples_);
    OFSDP_RETURN_IF_ERROR(order_weights());
    if (!options_.free_batch) return {};
    OFSDP_ASSIGN_OR_RETURN(const Graph made, specialized(graph_, opened_batch_));
    graph_ = with_free_reshapes(graph_, made, opened_batch_);
    return {};
  }

  // Samples together must give the outputs that each gives by itself.
  Status check_open_batch(const OnnxFile& file) {
    if (!options_.free_batch) return {};
    const auto made = [&](int64_t samples) { return specialized(graph_, samples); };
    OFSDP_ASSIGN_OR_RETURN(const FreeBatchGraphs graphs, free_batch_graphs(opened_batch_, made));
    OFSDP_RETURN_IF_ERROR(bind_data(data_, graphs.several, 0, {}, {}));
    return check_free_batch(graphs, *data_.train,
                            [&](const Parameter& p, std::vector<std::byte>& bytes) {
                              return read_weight(file, graphs.one, p, bytes);
                            });
  }

  Status order_weights() {
    if (!lacks_nhwc_order(graph_)) return {};
    NhwcOrder order{options_.nhwc_weights};
    if (order.order == NhwcWeights::kAuto) {
      OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(graph_, rows_, batch_));
      OFSDP_ASSIGN_OR_RETURN(order, find_nhwc_order(graph_, shapes, Mode::kEval, &ort_operators()));
    }
    graph_ = with_nhwc_order(graph_, order.order);
    return {};
  }

  Result<Graph> specialized(const Graph& graph, int64_t batch) const {
    OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(graph, rows_, batch));
    return specialize(graph, shapes, Mode::kEval, &ort_operators());
  }

  // Returns the graph for twice as many samples, even if the file fixes their number.
  Result<Graph> twice(int64_t batch) const {
    Graph open = graph_;
    for (const ValueId id : open.inputs) {
      auto& axes = open.value(id).declared;
      if (!axes.empty() && axes[0].size == batch) axes[0].size = -1;
    }
    return specialized(open, 2 * batch);
  }

  // Finds the samples in each output; outputs without rows are left out unless they are named.
  Status find_samples() {
    constexpr int64_t kSeveral = 3;  // one sample would not show the axis
    const int64_t batch = fixed_batch(graph_) > 0 ? batch_ : std::max(batch_, kSeveral);
    Result<Graph> made = specialized(graph_, batch);
    const TextFit texts(graph_, data_, rows_, [&](const RowShapes& rows) -> Result<Graph> {
      OFSDP_ASSIGN_OR_RETURN(const auto shapes, bind_inputs(graph_, rows, batch));
      return specialize(graph_, shapes, Mode::kEval, &ort_operators());
    });
    if (!made.ok()) return texts.explained(std::move(made).status());
    const Graph once = *std::move(made);
    OFSDP_RETURN_IF_ERROR(texts.check_positions(once, once.outputs));
    const Result<Graph> doubled = twice(batch);
    SampleOrder order(once, batch, options_.batch_axes, [&] { return twice(batch); });
    std::vector<ValueId> kept;
    for (size_t i = 0; i < once.outputs.size(); ++i) {
      const ValueId id = once.outputs[i];
      const Value& value = once.value(id);
      if (options_.predictions.empty() && !is_floating(value.desc.dtype)) continue;
      const std::string why = whole_ ? ""
                              : doubled.ok()
                                  ? why_no_rows(value, doubled->value(doubled->outputs[i]))
                                  : why_no_rows(value, batch);
      OFSDP_REJECT_IF(!why.empty() && !options_.predictions.empty(), "--prediction {}: {}",
                      value.name, why);
      if (!why.empty()) {
        leave_out(value.name, why);
        continue;
      }
      int64_t outer = 1;
      if (!whole_) {
        OFSDP_ASSIGN_OR_RETURN(outer, order.outer(id, 0, "predict"));
      }
      const Shape row = whole_ ? value.desc.shape : row_of(value.desc.shape, batch, outer);
      outputs_.push_back({value.name, value.desc.dtype, row, outer});
      OFSDP_REJECT_IF(!npy_descr(value.desc.dtype), "output '{}': {} is no type of .npy",
                      value.name, dtype_name(value.desc.dtype));
      kept.push_back(graph_.outputs[i]);
    }
    OFSDP_REJECT_IF(kept.empty(),
                    "{}: expected an output of floating numbers with a row for each sample, found "
                    "none{}{}",
                    graph_.file, left_out_.empty() ? "" : ": ", joined(left_out_, "; "));
    cut(graph_, kept);
    return check_form();
  }

  static std::string why_no_rows(const Value& value, const Value& doubled) {
    if (2 * value.desc.numel() == doubled.desc.numel()) return "";
    return format_text("{} is no row for each sample", value.desc.shape.text());
  }
  static std::string why_no_rows(const Value& value, int64_t batch) {
    if (std::ranges::count(value.desc.shape.axes(), batch) > 0) return "";
    return format_text("{} has no axis of {} samples", value.desc.shape.text(), batch);
  }

  // Returns the axes of one sample: those of the output without the batch.
  static Shape row_of(const Shape& shape, int64_t batch, int64_t outer) {
    std::vector<int64_t> axes = shape.axes();
    int64_t before = 1;
    for (size_t i = 0; i < axes.size(); before *= axes[i++]) {
      if (before > outer || before * axes[i] < outer * batch || axes[i] % batch != 0) continue;
      axes[i] /= batch;
      if (axes[i] == 1) axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    return Shape(std::move(axes));
  }

  Status check_form() const {
    OFSDP_REJECT_IF(extension() == ".npy" && outputs_.size() > 1,
                    "-o {}: expected one output, found {}: --prediction NAME takes one, and .npz "
                    "has room for all",
                    options_.files.output, names_text());
    return {};
  }

  std::string names_text() const {
    std::vector<std::string> names;
    for (const Prediction& output : outputs_) names.push_back(output.name);
    return joined(names, ", ");
  }

  // --- the passes

  Status write(const OnnxFile& file, const std::string& path) {
    OFSDP_ASSIGN_OR_RETURN(const std::unique_ptr<RowsWriter> writer, make_writer());
    OFSDP_RETURN_IF_ERROR(writer->begin(path, outputs_, samples_));
    for (int64_t first = 0; first < samples_;) {
      const bool fixed = fixed_batch(graph_) > 0;
      const int64_t count = std::min(batch_, samples_ - first);
      OFSDP_RETURN_IF_ERROR(prepare(file, fixed ? batch_ : count));
      OFSDP_RETURN_IF_ERROR(feed_rows(first, count));
      Status predicted = pass_->run();
      OFSDP_RETURN_IF_ERROR(about_positions(std::move(predicted), pass_->refused(), data_));
      OFSDP_RETURN_IF_ERROR(writer->add(sorted_rows(), count));
      first += count;
    }
    return writer->finish();
  }

  // Class scores are an output with one axis besides the samples, unless --loss says otherwise.
  Result<std::unique_ptr<RowsWriter>> make_writer() const {
    const LossTraits& loss = loss_traits(options_.losses[0].kind);
    const bool scores = outputs_.size() == 1 && outputs_[0].row.rank() == 1 &&
                        outputs_[0].row.numel() > 1 && loss.labels != LabelKind::kValues;
    if (!scores) return make_rows_writer(extension(), {});
    OFSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, class_names());
    return make_rows_writer(extension(), names);
  }

  // Returns the names of the checkpoint or next to the model if they fit, else numbers.
  Result<std::vector<std::string>> class_names() const {
    std::vector<std::string> names = saved_classes_;
    if (names.empty()) {
      OFSDP_ASSIGN_OR_RETURN(ClassNames known, class_names_of_run(options_, graph_));
      names = std::move(known.names);
    }
    const auto count = static_cast<size_t>(outputs_[0].row.numel());
    if (names.size() == count) return names;
    names.clear();
    for (size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
    return names;
  }

  // Makes the pass for `size` samples, unless the present one is.
  Status prepare(const OnnxFile& file, int64_t size) {
    if (pass_ != nullptr && size == size_) return {};
    pass_.reset();
    OFSDP_ASSIGN_OR_RETURN(Graph made, specialized(graph_, size));
    for (ValueId& id : made.outputs) {  // a copy is plain, and an activation
      const std::string name = made.value(id).name + ".predicted";
      OFSDP_ASSIGN_OR_RETURN(id, GraphEditor(made).add1("ofsdp.Copy", name, {id}));
    }
    running_ = fuse(made, made.outputs);
    OFSDP_RETURN_IF_ERROR(bind_data(data_, running_, 0, {}, {}));
    size_ = size;
    pass_ = std::make_unique<ForwardPass>(running_);
    return feed_weights(file);
  }

  Status feed_weights(const OnnxFile& file) {
    for (const Parameter& p : running_.parameters) {
      const Value& value = running_.value(p.value);
      if (value.kind != ValueKind::kParameter) continue;
      std::vector<std::byte> bytes;
      OFSDP_RETURN_IF_ERROR(read_weight(file, running_, p, bytes));
      pass_->feed(p.value, bytes);
    }
    return {};
  }

  // A file with a fixed batch gets the last row again where rows are missing.
  Status feed_rows(int64_t first, int64_t count) {
    std::vector<int64_t> samples(static_cast<size_t>(size_), first + count - 1);
    std::iota(samples.begin(), samples.begin() + count, first);
    for (size_t i = 0; i < running_.inputs.size(); ++i) {
      const ValueId id = running_.inputs[i];
      std::vector<std::byte> bytes(running_.value(id).desc.bytes());
      OFSDP_RETURN_IF_ERROR(data_.train->read_rows(static_cast<int>(i), samples, bytes.data()));
      pass_->feed(id, bytes);
    }
    return {};
  }

  // Returns each output as [samples, places, inner].
  std::vector<std::vector<std::byte>> sorted_rows() const {
    std::vector<std::vector<std::byte>> all;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Prediction& output = outputs_[i];
      const std::span<const std::byte> from = pass_->output(running_.outputs[i]);
      const size_t piece = static_cast<size_t>(output.inner()) * dtype_size(output.dtype);
      std::vector<std::byte>& rows = all.emplace_back(from.size());
      for (int64_t outer = 0; outer < output.outer; ++outer) {
        for (int64_t sample = 0; sample < size_; ++sample) {
          const auto source = static_cast<size_t>(outer * size_ + sample) * piece;
          const auto target = static_cast<size_t>(sample * output.outer + outer) * piece;
          std::memcpy(rows.data() + target, from.data() + source, piece);
        }
      }
    }
    return all;
  }

  void say() const {
    std::string text;
    for (const std::string& line : left_out_) text += line + "\n";
    std::vector<std::string> what;
    for (const Prediction& output : outputs_) {
      std::vector<int64_t> dims{samples_};
      dims.insert(dims.end(), output.row.axes().begin(), output.row.axes().end());
      what.push_back(format_text("{} {}", escaped(output.name),
                                 TensorDesc{output.dtype, Shape(std::move(dims))}.text()));
    }
    print_lines(stdout, text + format_text("wrote {}: {}\n", escaped(options_.files.output),
                                           joined(what, ", ")));
  }

  Options options_;
  const Registry& registry_;
  std::string model_;                       // file
  TrainedRules rules_;                      // a checkpoint's values are no constants of the file
  std::vector<std::string> saved_classes_;  // of the checkpoint
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_;
  DataSetup data_;
  Graph graph_;                        // symbolic, cut at the outputs
  Graph unmoved_;                      // the same with the file's axes
  std::map<std::string, Shape> rows_;  // of one sample, by input
  std::vector<Prediction> outputs_;
  std::vector<std::string> left_out_;  // lines
  int64_t samples_ = 0, batch_ = 1;
  bool whole_ = false;        // the file has no batch axis: each sample is a batch
  int64_t opened_batch_ = 0;  // --free-batch: the batch that the file fixes
  Graph running_;             // for `size_` samples
  int64_t size_ = 0;
  std::unique_ptr<ForwardPass> pass_;
};

}  // namespace

Status predict(const Options& options, const Registry& registry) {
  return Predictor(options, registry).run();
}

}  // namespace ofsdp::runtime

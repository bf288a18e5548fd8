// Text about a run before it starts, and the facts for runtime/log/screen.h.
#include <algorithm>
#include <filesystem>
#include <set>

#include "importer/edit/model_edits.h"
#include "importer/file/tensor_record.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/sample_order.h"
#include "importer/passes/trained_set.h"
#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "kernels/cpu/parallel.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/prepared_run.h"
#include "runtime/train/setup/class_names.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {

namespace {

OffloadTraffic of_update(const CompiledRun& run) {
  const SamplerOptions& batch = run.train_sampler->options();
  OffloadTraffic sum;
  for (int64_t micro = 0; micro < batch.grad_accum; ++micro) {
    const StepProgram& program =
        run.programs.at({batch.batch_size, true, micro == 0, micro + 1 == batch.grad_accum});
    const OffloadTraffic one = offload_traffic(lower(program, lowering(run, 0)));
    sum.up += one.up;
    sum.down += one.down;
  }
  return sum;
}

}  // namespace

std::string dtypes_lines(const Options& options, bool on_device) {
  const ShardingOptions& s = options.sharding;
  const bool tf32 = s.matmul_precision == MatmulPrecision::kHigh;
  const StateDType states = options.optimizer.state_dtype;
  const std::string rest =
      states == StateDType::kFloat32
          ? "masters, optimizer state, loss float32"
          : format_text("optimizer state {}; masters, loss float32", name_of(states));
  std::string lines =
      format_text("parameters and computation {}, reduction {}, buffers {}; {}{}{}\n",
                  dtype_name(s.param_dtype), dtype_name(s.reduce_dtype), dtype_name(s.buffer_dtype),
                  rest, s.param_dtype == DType::kFloat16 ? "; dynamic loss scale" : "",
                  tf32 && on_device ? "; products of float32 in TF32" : "");
  if (tf32 && !on_device) {
    lines += "--matmul-precision high: no effect, since the run is on the CPU\n";
  }
  return lines;
}

std::string teacher_line(const ModelSetup& setup) {
  const Teacher* teacher = setup.source->teacher();
  if (teacher == nullptr) return "";
  int64_t count = 0, elements = 0;
  for (const Parameter& p : setup.graph.parameters) {
    if (!p.of_teacher) continue;
    ++count;
    elements += setup.graph.value(p.value).desc.numel();
  }
  return format_text("teacher: {}, {} tensors, {} numbers, frozen; weight {}, temperature {}\n",
                     escaped(teacher->file.path()), count, readable_count(elements),
                     teacher->how.weight, teacher->how.temperature);
}

std::string offload_line(const CompiledRun& run, const RunSettings& settings, bool exact) {
  const CpuOffload offloads = settings.options.sharding.cpu_offload;
  if (offloads == CpuOffload::kNone) return "";
  const std::string flag = format_text("--cpu-offload {}", name_of(offloads));
  if (run.device == nullptr) return flag + ": no effect, since the run is on the CPU\n";
  const OffloadMap& offload = run.memory.offload;
  const OffloadTraffic traffic = of_update(run);
  const auto shown = [exact](size_t bytes) {
    return exact ? format_text("{} bytes", bytes) : readable_bytes(bytes);
  };
  return format_text(
      "{}: {} a rank pinned on the host (parameters {}, optimizer state {}, gradients {}); an "
      "update copies {} up and {} down\n",
      flag, shown(region_bytes(offload.bytes)), shown(offload.parameter_bytes),
      shown(offload.optimizer_bytes), shown(offload.gradient_bytes), shown(traffic.up),
      shown(traffic.down));
}

std::string slices_line(const BatchSizes& batch) {
  if (batch.slices == 0) return "";
  return format_text(
      "across_ranks: {} slices of at most {} samples, {} a rank; the same bits on any number of "
      "ranks with {} thread{} each\n",
      batch.slices, batch.batch_size, batch.grad_accum, pool_threads(),
      pool_threads() == 1 ? "" : "s");
}

namespace {

constexpr size_t kWeightsShown = 16;

// Says what each rank that shares a copy needs.
std::string weights_line(const CompiledRun& run, const Options& options, bool exact) {
  const std::vector<double>& weights = options.sharding.shard_weights.of_ranks;
  if (weights.empty()) return "";
  if (!run.shards.weighted()) {
    return run.shards.world == 1
               ? ""
               : format_text("--shard-weights: no effect, since {} has every unit whole\n",
                             strategy_name(run.shards.strategy));
  }
  std::vector<std::string> shown;
  const std::vector<size_t>& all = run.memory.bytes_of_places;
  for (size_t i = 0; i < std::min(all.size(), kWeightsShown); ++i) {
    shown.push_back(exact ? std::to_string(all[i]) : readable_bytes(all[i]));
  }
  return format_text("--shard-weights: ranks need at most {}{}{}\n", joined(shown, ", "),
                     all.size() > shown.size() ? ", ..." : "", exact ? " bytes" : "");
}

// --batch-weights: says what each rank gets of a forward.
std::string parts_line(const CompiledRun& run, const RunSettings& settings) {
  if (settings.batch.weights.empty()) return "";
  const std::vector<int64_t>& parts = run.train_sampler->options().parts;
  if (parts.empty()) return "--batch-weights: no effect, since ranks get equal parts of a batch\n";
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(parts.size(), kWeightsShown); ++i) {
    shown.push_back(std::to_string(parts[i]));
  }
  return format_text("--batch-weights: ranks get {}{} samples of each forward\n",
                     joined(shown, ", "), parts.size() > shown.size() ? ", ..." : "");
}

// Returns the bytes of all ranks on a host. The first one unpacks columns for all.
size_t bytes_on_host(const CompiledRun& plan, size_t ranks) {
  const MemoryMap& m = plan.memory;
  const size_t unpacked = m.data + m.data_elsewhere;
  if (m.bytes_of_places.empty()) return ranks * (m.planned_bytes() - m.data) + unpacked;
  size_t sum = unpacked;
  for (size_t r = 0; r < ranks; ++r) {
    sum += m.bytes_of_places[r % m.bytes_of_places.size()] - unpacked;
  }
  return sum;
}

}  // namespace

std::string memory_lack(const CompiledRun& plan, const Communicator& communicator,
                        const MachineMemory& memory) {
  if (plan.device != nullptr) return "";
  const MemoryMap& m = plan.memory;
  const auto ranks = static_cast<size_t>(communicator.ranks_in_common());
  const size_t needed = bytes_on_host(plan, ranks);
  if (needed <= static_cast<size_t>(memory.bytes)) return "";
  return format_text("{} needs {} bytes a rank, {} for {} rank{} on this host: {} {} bytes",
                     strategy_name(plan.shards.strategy), m.planned_bytes(), needed, ranks,
                     ranks == 1 ? "" : "s", memory.cgroup ? "its cgroup allows" : "it has",
                     memory.bytes);
}

namespace {

// Returns "KIND:PREDICTION:LABELS the mean over samples; ...": each loss's kind and divisor.
std::string loss_text(const PlannedRun& run) {
  const bool global = run.settings.options.loss_mean == LossMean::kGlobal;
  const char* const mean = global ? "the mean" : "the ranks' mean of means";
  const std::vector<LossSpec>& losses = run.setup.source->settings().losses;
  std::string text;
  for (size_t i = 0; i < losses.size(); ++i) {
    const LossCount& count = run.setup.counts[i];
    if (i > 0) text += "; ";
    if (losses.size() > 1) text += escaped(losses[i].said) + " ";
    const std::string over =
        count.by_label ? format_text("the labels of '{}'", escaped(count.labels)) : "samples";
    text += count.form == TermForm::kSum ? format_text("the sum over {}", over)
                                         : format_text("{} over {}", mean, over);
    if (!losses[i].before.empty()) {
      text += format_text("; it takes the scores before {}", escaped(losses[i].before));
    }
  }
  return text;
}

// A sum in the graph that is no loss node counts as a mean does, so it grows with the micro-batch.
std::string sums_lines(const ModelSetup& setup) {
  constexpr const char* kSums[] = {"ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"};
  const Graph& graph = setup.graph;
  const GraphUses uses(graph);
  std::string lines;
  for (const LossSpec& loss : setup.source->settings().losses) {
    const int maker = uses.maker(loss.output.empty() ? 0 : graph.find(loss.output));
    if (maker < 0) continue;
    const std::string op = graph.nodes[static_cast<size_t>(maker)].op->full_name();
    if (std::ranges::count(kSums, op) == 0) continue;
    lines += format_text(
        "loss '{}' is a sum over a micro-batch ({}): other batch sizes and ranks train otherwise; "
        "a ReduceMean would not\n",
        escaped(loss.output), op);
  }
  return lines;
}

// The weights that --train trains next to adapters are in one of the two files.
std::string adapter_line(const ModelSetup& setup, const Options& options) {
  const std::string& path = options.edit.adapter;
  if (path.empty() || holds_whole_weights(path, !options.files.output.empty())) return "";
  const auto& parameters = setup.graph.parameters;
  const auto whole = std::ranges::find_if(
      parameters, [](const Parameter& p) { return p.trained && !is_adapter_weight(p.name); });
  if (whole == parameters.end()) return "";
  return format_text("{} gets adapters; '{}' is in {}, and --adapter FOLDER/ has both\n",
                     escaped(path), escaped(whole->name), escaped(options.files.output));
}

bool is_float32(const ShardingOptions& s) {
  return s.param_dtype == DType::kFloat32 && s.reduce_dtype == DType::kFloat32 &&
         s.buffer_dtype == DType::kFloat32 && s.matmul_precision == MatmulPrecision::kHighest;
}

// Adds `text` line by line.
void add_lines(const std::string& text, std::vector<std::string>& lines) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(escaped(text.substr(begin, end - begin)));
    begin = end + 1;
  }
}

constexpr size_t kShownClasses = 400;  // bytes of a line

std::string classes_line(const ModelSetup& setup) {
  const std::vector<std::string> classes = setup.class_names();
  if (classes.empty()) return "";
  std::string line = "classes:";
  for (size_t i = 0; i < classes.size() && line.size() < kShownClasses; ++i) {
    line += format_text(" {} {}{}", i, classes[i], i + 1 < classes.size() ? "," : "");
  }
  return line + (line.ends_with(",") ? " ...\n" : "\n");
}

// The data may lack a class of the model: then the numbers of the names may be others than the
// model's.
std::string few_names_lines(const ModelSetup& setup) {
  const std::vector<LossSpec>& losses = setup.source->settings().losses;
  std::string lines;
  for (size_t i = 0; i < losses.size() && setup.data.train != nullptr; ++i) {
    const std::vector<std::string> names = setup.data.train->classes(losses[i].labels);
    const int64_t classes = setup.counts[i].classes;
    if (names.empty() || std::ssize(names) >= classes) continue;
    lines += format_text(
        "warning: the labels '{}' have {} names, the prediction has {} classes: the names are 0 to "
        "{}; if the model counts otherwise, write its names, one a line, as {}\n",
        losses[i].labels, names.size(), classes, names.size() - 1,
        class_files_of(setup.file.path())[0]);
  }
  return lines;
}

std::string left_out_line(const Graph& graph) {
  if (graph.left_out.empty()) return "";
  return format_text("left out: {}, which nothing here computes; the written file keeps them\n",
                     joined(graph.left_out, ", "));
}

std::string whole_line(const ModelSetup& setup, const Options& options) {
  const auto none = [](const auto& given) { return given.second == importer::kNoBatchAxis; };
  const bool whole = !setup.whole_inputs.empty() || std::ranges::any_of(options.batch_axes, none);
  return whole ? "no batch axis in the file: each sample is a micro-batch of its own\n" : "";
}

// Says what becomes of weights that the file has as integers.
std::string integers_line(const ModelSetup& setup) {
  std::set<std::string> types;
  int count = 0;
  for (const Parameter& p : setup.graph.parameters) {
    if (p.of_teacher || !p.trained) continue;
    const auto& q = setup.file.initializers()[static_cast<size_t>(p.initializer)].quantization;
    if (q == nullptr) continue;
    types.insert(importer::integer_name(q->onnx_type));
    ++count;
  }
  if (count == 0) return "";
  const bool learned = std::ranges::any_of(setup.graph.nodes, [](const Node& node) {
    return node.op->fake_quantizes && node.attributes.i("learned", 0) != 0;
  });
  return format_text(
      "integer weights: {} ({}), trained as float32; the written file has them rounded to "
      "integers, "
      "with {} scales\n",
      count, joined(types, ", "), learned ? "trained" : "the same");
}

std::vector<std::string> notices(const PlannedRun& run, bool all, bool exact) {
  const Options& options = run.settings.options;
  std::vector<std::string> lines;
  add_lines(left_out_line(run.setup.graph), lines);
  add_lines(sums_lines(run.setup), lines);
  add_lines(adapter_line(run.setup, options), lines);
  add_lines(classes_line(run.setup), lines);
  add_lines(few_names_lines(run.setup), lines);
  add_lines(past_line(run.setup.fed_empty), lines);
  add_lines(run.setup.nhwc_notice, lines);
  add_lines(run.setup.bucket_notice, lines);
  add_lines(integers_line(run.setup), lines);
  add_lines(whole_line(run.setup, options), lines);
  add_lines(teacher_line(run.setup), lines);
  add_lines(run.device_notice, lines);
  add_lines(offload_line(run.plan, run.settings, exact), lines);
  if (all || !is_float32(options.sharding)) {
    add_lines(dtypes_lines(options, run.plan.device != nullptr), lines);
  }
  add_lines(slices_line(run.settings.batch), lines);
  add_lines(weights_line(run.plan, run.settings.options, exact), lines);
  add_lines(parts_line(run.plan, run.settings), lines);
  add_lines(run.plan.choice, lines);
  return lines;
}

}  // namespace

namespace {

std::string name_of_data(const Options& options) {
  const DataChoice& choice = options.run.data;
  switch (choice.kind) {
    case DataChoice::Kind::kSynthetic:
      return "synthetic";
    case DataChoice::Kind::kPath:
      return escaped(choice.path);
    case DataChoice::Kind::kInline:
      return escaped(choice.origin);
    default:
      return escaped((std::filesystem::path(options.model).parent_path() / "data").string());
  }
}

DataFacts data_facts(const PlannedRun& run) {
  const Options& options = run.settings.options;
  DataFacts data{.name = name_of_data(options)};
  if (run.plan.train_sampler) {
    const SamplerOptions& rows = run.plan.train_sampler->options();
    const bool endless = rows.samples == kEndless;
    data.rows = endless ? 0 : rows.samples;
    data.batches = endless ? 0 : run.plan.train_sampler->updates_per_epoch();
    data.batch = rows.global_batch();
  }
  if (run.plan.eval_sampler) data.eval_rows = run.plan.eval_sampler->options().samples;
  const DataChoice& eval = options.run.eval_data;
  if (eval.kind == DataChoice::Kind::kPath) data.eval_name = escaped(eval.path);
  return data;
}

// The units are no news, unless the command asks for other ones.
bool asks_for_units(const std::vector<std::string>& settings) {
  return std::ranges::any_of(
      settings, [](const std::string& setting) { return setting.starts_with("wrap"); });
}

void add_model(const Graph& graph, OpeningFacts& facts) {
  for (const Parameter& p : graph.parameters) {
    if (p.of_teacher) continue;
    const int64_t numbers = graph.value(p.value).desc.shape.numel();
    ++facts.tensors;
    facts.numbers += numbers;
    if (p.reason == importer::kFrozenByModule) ++facts.frozen_tensors;
    if (!p.trained) continue;
    ++facts.trained_tensors;
    facts.trained_numbers += numbers;
  }
}

}  // namespace

OpeningFacts opening_facts(const PlannedRun& run, const std::vector<std::string>& settings) {
  const Options& options = run.settings.options;
  OpeningFacts facts;
  facts.model = escaped(options.model);
  facts.trains = options.command != Command::kEval;
  add_model(run.setup.graph, facts);
  facts.data = data_facts(run);
  facts.loss = loss_text(run);
  facts.settings = settings;
  facts.notices = notices(run, /*all=*/false, /*exact=*/false);
  if (asks_for_units(settings)) add_lines(run.plan.shards.notice, facts.notices);
  for (const PeakShare& share : peak_of(run.plan).shares) {
    if (std::string_view(share.key) != "unused") facts.memory.push_back({share.label, share.bytes});
  }
  if (run.device_notice.empty()) facts.device = "CPU";
  facts.strategy = strategy_name(run.plan.shards.strategy);
  facts.ranks = run.communicator.size();
  facts.threads = pool_threads();
  facts.units = static_cast<int64_t>(run.plan.shards.units.size());
  facts.planned_bytes = run.plan.memory.planned_bytes();
  if (facts.trains) facts.files = trained_files(options);
  std::ranges::copy(record_files(options), std::back_inserter(facts.files));
  facts.files = by_folder(std::move(facts.files), options);
  return facts;
}

namespace {

void add_file(const std::string& path, const char* what, std::vector<WrittenFile>& files) {
  if (!path.empty()) files.push_back({path, what});
}

}  // namespace

std::vector<WrittenFile> trained_files(const Options& options) {
  std::vector<WrittenFile> files;
  add_file(options.edit.adapter, "adapter", files);
  add_file(options.files.output, "", files);
  return files;
}

std::vector<WrittenFile> record_files(const Options& options) {
  std::vector<WrittenFile> files;
  add_file(options.files.metrics, "metrics", files);
  for (const std::string& log : options.files.log) {
    add_file(log.substr(log.find(':') + 1), "log", files);
  }
  const bool trains = options.command == Command::kTrain;
  if (trains) add_file(options.pictures.report, "report", files);
  add_file(options.files.trace, "trace", files);
  if (trains) add_file(options.checkpoint.dir, "checkpoints", files);
  return files;
}

std::vector<WrittenFile> by_folder(std::vector<WrittenFile> files, const Options& options) {
  const std::string& folder = options.folder.path;
  if (folder.empty()) return files;
  static constexpr std::string_view kRecords[] = {"metrics", "log", "report", "trace",
                                                  "checkpoints"};
  std::erase_if(files, [&](const WrittenFile& file) {
    const bool record = std::ranges::find(kRecords, file.what) != std::end(kRecords);
    return record && file.path.starts_with(folder + "/");
  });
  files.push_back({folder, "run"});
  return files;
}

std::string opening_tables(const PlannedRun& run) {
  const CompiledRun& plan = run.plan;
  std::string text = run.settings.configuration + trained_table(run.setup.graph);
  if (!plan.shards.notice.empty()) text += escaped(plan.shards.notice) + "\n";
  text += "loss: " + loss_text(run) + "\n" + fused_line(plan);
  for (const std::string& line : notices(run, /*all=*/true, /*exact=*/true)) text += line + "\n";
  return text;
}

int64_t tokens_a_sample(const ModelSetup& setup) {
  const LossCount& count = setup.counts.front();
  if (!count.by_label) return 1;
  const auto& rows = setup.source->settings().rows;
  const auto row = rows.find(count.labels);
  const bool line = row != rows.end() && row->second.rank() == 1;
  return line ? std::max<int64_t>(row->second.numel(), 1) : 1;
}

}  // namespace ofsdp::runtime

// Options about a run's length, data and output files.
#include <algorithm>

#include "runtime/cli/options/option_table.h"
#include "runtime/data/column_file.h"

namespace ofsdp::cli {
namespace {

OptionEntry batch_count(OptionEntry entry, GivenCount BatchOptions::*count) {
  entry.set = [=](Options& o, const std::string& text) {
    (o.batch.*count).value = parse_integer(text, 1);
    return fine_or((o.batch.*count).value.has_value(), "a whole number of at least 1");
  };
  entry.show = [=](const Options& o) {
    const auto& value = (o.batch.*count).value;
    return value ? std::to_string(*value) : std::string("~");
  };
  return entry;
}

template <typename Field>
OptionEntry interval(std::string name, std::string help, Field field) {
  return entries::parsed({std::move(name), "1epoch, Nepoch, Nstep", std::move(help)},
                         "Nepoch or Nstep such as 1epoch", field, parse_interval, show_interval);
}

template <typename Field>
OptionEntry data_choice(OptionEntry entry, Field field) {
  using Kind = DataChoice::Kind;
  entry.is_path = true;
  return entries::parsed(
      entry, "a folder, a YAML file or synthetic", field,
      [may_be_none = entry.name == "eval-data"](const std::string& text) {
        std::optional<DataChoice> chosen;
        if (text == "synthetic") return chosen = DataChoice{Kind::kSynthetic};
        if (text == "none" && may_be_none) return chosen = DataChoice{Kind::kNone};
        if (!text.empty()) chosen = DataChoice{.kind = Kind::kPath, .path = text};
        return chosen;
      },
      [](const DataChoice& data) {
        if (data.kind == Kind::kNone) return std::string("none");
        if (data.kind == Kind::kSynthetic) return std::string("synthetic");
        if (data.kind == Kind::kPath) return yaml_quoted(data.path);
        return std::string("~");  // computed; describe() writes a mapping
      });
}

// Returns ", .npz, .safetensors, .csv, .tsv, .jsonl or .parquet".
std::string list_extensions() {
  std::string text;
  for (const DataFormat& format : data_formats()) {
    const bool last = format.extension == data_formats().back().extension;
    text += format_text("{}{}", last ? " or " : ", ", format.extension);
  }
  return text;
}

constexpr std::string_view kTopPrefix = "top";
constexpr std::string_view kWordsPrefix = "wer[";  // and the class between words

// Parses "accuracy", "top5", "wer[4]" or "f1@logits" into the kind and the number.
Verdict parse_metric(const std::string& text, MetricSpec& metric) {
  const size_t at = text.find('@');
  const std::string kind = lowered(text.substr(0, at));
  metric.name = at == std::string::npos ? kind : kind + text.substr(at);
  if (at != std::string::npos) metric.prediction = text.substr(at + 1);
  if (at != std::string::npos && metric.prediction.empty()) {
    return {false, "NAME@PREDICTION", ""};
  }
  if (kind.starts_with(kTopPrefix)) {
    const auto k = parse_integer(kind.substr(kTopPrefix.size()), 1);
    metric.kind = MetricKind::kTopK;
    metric.k = k.value_or(1);
    if (k) return {};
  }
  if (kind.starts_with(kWordsPrefix) && kind.ends_with(']')) {
    const auto space =
        parse_integer(kind.substr(kWordsPrefix.size(), kind.size() - kWordsPrefix.size() - 1), 0);
    metric.kind = MetricKind::kWer;
    metric.k = space.value_or(-1);
    return fine_or(space.has_value(), "wer[CLASS], the class between words");
  }
  std::vector<std::string> names = names_of<MetricKind>();
  Verdict verdict = set_choice(kind, metric.kind, names);
  if (metric.kind == MetricKind::kWer) metric.k = -1;
  if (!verdict.fine) verdict.expected += " or topK such as top5";
  return verdict;
}

OptionEntry eval_metrics() {
  OptionEntry entry{.name = "eval-metrics",
                    .values = "accuracy; topK, wer[CLASS], " + joined(names_of<MetricKind>(), ", "),
                    .help = "a list of numbers of an evaluation; NAME@PREDICTION for another one",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    for (const std::string& name : split_list(text)) {
      MetricSpec metric;
      const Verdict verdict = parse_metric(name, metric);
      if (!verdict.fine) return verdict;
      const auto& given = o.run.eval_metrics;
      if (std::ranges::find(given, metric.name, &MetricSpec::name) == given.end()) {
        o.run.eval_metrics.push_back(std::move(metric));
      }
    }
    return Verdict{};
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> names;
    for (const MetricSpec& metric : o.run.eval_metrics) names.push_back(metric.name);
    return yaml_list(names);
  };
  entry.clear = [](Options& o) { o.run.eval_metrics.clear(); };
  return entry;
}

OptionEntry keep_best() {
  OptionEntry entry = entries::text("none",
                                    {"keep-best", "none, loss, a name of --eval-metrics",
                                     "also keep the checkpoint of the best evaluation"},
                                    OFSDP_FIELD(checkpoint.keep_best));
  entry.set = [](Options& o, const std::string& text) {
    MetricSpec metric;
    const Verdict verdict = parse_metric(text, metric);
    const std::string word = lowered(text);
    if (word != "none" && word != "loss" && !verdict.fine) {
      return Verdict{false, "none, loss or a name of --eval-metrics", verdict.hint};
    }
    o.checkpoint.keep_best = word == "none" ? "" : word == "loss" ? word : metric.name;
    return Verdict{};
  };
  return entry;
}

OptionEntry logs() {
  OptionEntry entry = entries::repeated(
      "none",
      {"log", "none; csv:FILE, tensorboard:FOLDER, mlflow:FOLDER, wandb:FOLDER, repeated",
       "the numbers of --metrics once more, for other tools"},
      OFSDP_FIELD(files.log));
  entry.set = [add = entry.set](Options& o, const std::string& text) {
    for (const std::string_view form : {"csv:", "tensorboard:", "mlflow:", "wandb:"}) {
      if (text.starts_with(form) && text.size() > form.size()) return add(o, text);
    }
    return fine_or(text == "none", "csv:FILE, tensorboard:FOLDER, mlflow:FOLDER or wandb:FOLDER");
  };
  return entry;
}

OptionEntry watch() {
  return entries::parsed(
      {"watch", "off, on, N",
       "keep the norms of each unit's gradient and weights, or every N steps"},
      "off, on or a whole number of at least 1", OFSDP_FIELD(files.watch),
      [](const std::string& text) -> std::optional<int64_t> {
        if (const auto on = parse_switch(text)) return *on ? 1 : 0;
        return parse_integer(text, 1);
      },
      [](int64_t interval) {
        return interval == 0 ? "off" : interval == 1 ? "on" : std::to_string(interval);
      });
}

// 0 stands for lines by time.
OptionEntry log_interval() {
  return entries::parsed(
      {"log-interval", "auto, N", "updates between lines of the log; auto: by time"},
      "auto or a whole number of at least 1", OFSDP_FIELD(files.log_interval),
      [](const std::string& text) -> std::optional<int64_t> {
        return text == "auto" ? std::optional<int64_t>(0) : parse_integer(text, 1);
      },
      [](int64_t interval) { return interval == 0 ? "auto" : std::to_string(interval); });
}

OptionEntry plugins() {
  OptionEntry entry = entries::repeated(
      "none",
      {"plugin", "none; FILE.so, repeated", "operators and optimizers from a shared library"},
      OFSDP_FIELD(plugins));
  entry.is_path = true;
  return entry;
}

OptionEntry make_plugin() {
  OptionEntry entry =
      entries::path({"make-plugin", "none, FOLDER",
                     "plan: write a plug-in to begin with, for the operators that the model lacks"},
                    OFSDP_FIELD(make_plugin));
  entry.commands = only(Command::kPlan);
  return entry;
}

OptionEntry run_dir() {
  OptionEntry entry{.name = "run-dir",
                    .values = "runs (none with --output), none, DIR",
                    .help = "where a run makes the folder that keeps it",
                    .is_path = true};
  entry.set = [](Options& o, const std::string& text) {
    o.folder.dir = text == "none" ? "" : text;
    return fine_or(!text.empty(), "a folder or none");
  };
  entry.show = [](const Options& o) {
    if (!o.folder.dir) return std::string("~");
    return o.folder.dir->empty() ? std::string("none") : yaml_quoted(*o.folder.dir);
  };
  return entry;
}

OptionEntry run_name() {
  OptionEntry entry{.name = "run-name",
                    .values = "the date and the model's name; NAME",
                    .help = "the name of that folder; a taken one gets -2, -3"};
  entry.set = [](Options& o, const std::string& text) {
    o.folder.name = text;
    const bool one = text.find('/') == std::string::npos && !text.starts_with('.');
    return fine_or(one && !text.empty(), "the name of a folder, without / and no dot at its start");
  };
  entry.show = [](const Options& o) {
    return o.folder.name.empty() ? std::string("~") : yaml_quoted(o.folder.name);
  };
  const auto has_effect = [](const Options& o) { return !o.folder.dir || !o.folder.dir->empty(); };
  return entries::unless_idle(std::move(entry), has_effect, "--run-dir none");
}

}  // namespace

std::vector<OptionEntry> length_entries() {
  using namespace entries;
  return {
      batch_count({"batch-size", "8", "samples a rank puts through one forward"},
                  &BatchOptions::batch_size),
      batch_count({"grad-accum", "1", "forwards before an update"}, &BatchOptions::grad_accum),
      batch_count({"global-batch-size", "batch-size x grad-accum x ranks", "samples an update"},
                  &BatchOptions::global_batch_size),
      integer_or("none",
                 {"epochs", "1 (none with --steps), N", "the run ends after so many epochs"}, 1,
                 OFSDP_FIELD(run.epochs)),
      integer_or("none", {"steps", "none, N", "the run ends after so many updates, if not before"},
                 1, OFSDP_FIELD(run.steps)),
      toggle({"shuffle", "on; --no-shuffle", "a new order of samples each epoch"},
             OFSDP_FIELD(run.shuffle)),
      parsed({"seed", "0", "of the order of samples, dropout and synthetic data"},
             "a whole number from 0 to 2^64-1", OFSDP_FIELD(run.seed), parse_unsigned,
             [](uint64_t seed) { return std::to_string(seed); }),
      toggle({"drop-last", "off, on", "skip the short last batch of an epoch"},
             OFSDP_FIELD(run.drop_last)),
      integer_or("none", {"pack", "none, N", "documents share rows of N tokens"}, 1,
                 OFSDP_FIELD(run.pack)),
      text("none", {"bucket-by", "none, COLUMN", "batches have rows of like length, cut to it"},
           OFSDP_FIELD(run.bucket_by)),
  };
}

std::vector<OptionEntry> data_entries() {
  using namespace entries;
  return {
      data_choice({"data",
                   format_text("data/ next to the model; FOLDER, FILE.yaml{}, synthetic",
                               list_extensions()),
                   "training data: a folder or a file"},
                  OFSDP_FIELD(run.data)),
      data_choice(
          {"eval-data", "eval: or eval/ inside the data, else none; as --data", "evaluation data"},
          OFSDP_FIELD(run.eval_data)),
      integer_or("auto",
                 {"loader-threads", "auto (the rank's cores, at most 16), N",
                  "threads of a rank that decode images; no bits depend on it"},
                 1, OFSDP_FIELD(run.loader_threads)),
      interval("eval-interval", "how often to evaluate; also at the end",
               OFSDP_FIELD(run.eval_interval)),
      eval_metrics(),
      integer_or("none",
                 {"early-stop", "none, N",
                  "end after N evaluations in a row without a better loss, or --keep-best's value"},
                 1, OFSDP_FIELD(run.early_stop)),
  };
}

std::vector<OptionEntry> run_entries() {
  using namespace entries;
  return {
      trusted(path({"checkpoint-dir", "none, FOLDER", "folder for checkpoints"},
                   OFSDP_FIELD(checkpoint.dir))),
      interval("checkpoint-interval", "how often to save", OFSDP_FIELD(checkpoint.interval)),
      integer({"keep-checkpoints", "2", "checkpoints kept"}, 1, OFSDP_FIELD(checkpoint.keep)),
      keep_best(),
      choice("checkpoint-type", "files of a checkpoint", OFSDP_FIELD(checkpoint.type)),
      toggle({"checkpoint-sync", "off, on", "training waits for the save"},
             OFSDP_FIELD(checkpoint.sync)),
      toggle(
          {"save-on-signal", "on, off", "SIGTERM and Ctrl-C save, write the file so far and end"},
          OFSDP_FIELD(checkpoint.save_on_signal)),
      toggle({"overwrite-checkpoints", "off, on", "take a folder with another run's checkpoints"},
             OFSDP_FIELD(checkpoint.overwrite)),
      path({"resume", "none, latest, FOLDER, FILE.onnx",
            "go on from a checkpoint, or from a trained file's weights"},
           OFSDP_FIELD(checkpoint.resume)),
      trusted(plugins()),
      trusted(
          toggle({"plugin-override", "off, on", "a plug-in may replace kernels that are built in"},
                 OFSDP_FIELD(plugin_override))),
      trusted(make_plugin()),
      trusted(path({"output", "none, FILE.onnx", "the trained file, written at the end"},
                   OFSDP_FIELD(files.output))),
      choice("output-form", "inference: the trained file with dropout and batch statistics off",
             OFSDP_FIELD(output_form)),
      trusted(run_dir()),
      trusted(run_name()),
      trusted(
          path({"metrics", "none, FILE", "one JSON object a line"}, OFSDP_FIELD(files.metrics))),
      trusted(logs()),
      trusted(path({"report", "none, FILE.html", "a page with the curves of the run, at its end"},
                   OFSDP_FIELD(pictures.report))),
      toggle({"plot", "off, on", "draw the loss in the terminal at the end of the run"},
             OFSDP_FIELD(pictures.plot)),
      trusted(path({"trace", "none, FILE", "a Chrome/Perfetto trace"}, OFSDP_FIELD(files.trace))),
      log_interval(),
      watch(),
      toggle({"verbose", "off, on", "all tables before the first step"},
             OFSDP_FIELD(files.verbose)),
      toggle({"quiet", "off, on", "only warnings and the result"}, OFSDP_FIELD(files.quiet)),
  };
}

}  // namespace ofsdp::cli

// The options about how long and on what a run trains, and which files it writes.
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

constexpr Choice<CheckpointType> kCheckpointTypes[] = {{"sharded", CheckpointType::kSharded},
                                                       {"full", CheckpointType::kFull},
                                                       {"local", CheckpointType::kLocal}};

constexpr Choice<KeepBest> kBestBy[] = {
    {"none", KeepBest::kNone}, {"loss", KeepBest::kLoss}, {"accuracy", KeepBest::kAccuracy}};

// Batch sizes are kept as they were given; reconcile_batch makes the numbers.
template <typename Given, typename Settled>
OptionEntry batch_count(std::string name, std::string values, std::string help, Given given,
                        Settled settled) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help)};
  entry.set = [=](Options& o, const std::string& text) {
    given(o).value = parse_integer(text);
    return fine_or(given(o).value && *given(o).value >= 1, "a whole number of at least 1");
  };
  entry.show = [=](const Options& o) {
    if (o.batch.global_batch_size > 0) return format_text("{}", settled(o));
    return given(o).value ? format_text("{}", *given(o).value) : std::string("~");
  };
  return entry;
}

template <typename Field>
OptionEntry interval(std::string name, std::string help, Field field) {
  OptionEntry entry{std::move(name), "1epoch, Nepoch, Nstep", std::move(help)};
  entry.set = [=](Options& o, const std::string& text) {
    const std::optional<Interval> parsed = parse_interval(text);
    field(o) = parsed.value_or(Interval());
    return fine_or(parsed.has_value(), "Nepoch or Nstep such as 1epoch");
  };
  entry.show = [=](const Options& o) { return show_interval(field(o)); };
  return entry;
}

template <typename Field>
OptionEntry data_choice(std::string name, std::string values, std::string help, Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help)};
  const bool may_be_none = entry.name == "eval-data";
  entry.is_path = true;
  entry.set = [=](Options& o, const std::string& text) {
    using Kind = DataChoice::Kind;
    DataChoice chosen{text == "synthetic" ? Kind::kSynthetic : Kind::kPath, text, {}, {}, {}};
    if (text == "none" && may_be_none) chosen.kind = Kind::kNone;
    if (chosen.kind != Kind::kPath) chosen.path.clear();
    field(o) = std::move(chosen);
    return fine_or(!text.empty(), "a folder, a YAML file or synthetic");
  };
  entry.show = [=](const Options& o) -> std::string {
    const DataChoice& data = field(o);
    if (data.kind == DataChoice::Kind::kNone) return "none";
    if (data.kind == DataChoice::Kind::kSynthetic) return "synthetic";
    if (data.kind == DataChoice::Kind::kPath) return yaml_quoted(data.path);
    return "~";  // computed; describe() writes a mapping itself
  };
  return entry;
}

OptionEntry seed() {
  OptionEntry entry{"seed", "0", "of the order of samples, dropout and synthetic data"};
  entry.set = [](Options& o, const std::string& text) {
    const std::optional<uint64_t> value = parse_unsigned(text);
    o.run.seed = value.value_or(0);
    return fine_or(value.has_value(), "a whole number from 0 to 2^64-1");
  };
  entry.show = [](const Options& o) { return format_text("{}", o.run.seed); };
  return entry;
}

std::vector<OptionEntry> step_entries() {
  using namespace entries;
  return {
      batch_count("batch-size", "8", "samples a rank puts through one forward",
                  OFSDP_FIELD(batch.given.batch_size), OFSDP_FIELD(batch.batch_size)),
      batch_count("grad-accum", "1", "forwards before an update",
                  OFSDP_FIELD(batch.given.grad_accum), OFSDP_FIELD(batch.grad_accum)),
      batch_count("global-batch-size", "batch-size x grad-accum x ranks", "samples an update",
                  OFSDP_FIELD(batch.given.global_batch_size), OFSDP_FIELD(batch.global_batch_size)),
      integer_or("none", "epochs", "1 (none beside --steps), N", "the run ends after so many", 1,
                 OFSDP_FIELD(run.epochs)),
      integer_or("none", "steps", "none, N", "the run ends after so many updates, if not before", 1,
                 OFSDP_FIELD(run.steps)),
      toggle("shuffle", "on; --no-shuffle", "a new order of samples each epoch",
             OFSDP_FIELD(run.shuffle)),
      seed(),
      toggle("drop-last", "off, on", "skip the short last batch of an epoch",
             OFSDP_FIELD(run.drop_last)),
      data_choice("data", "data/ beside the model; FOLDER, FILE.yaml, synthetic", "training data",
                  OFSDP_FIELD(run.data)),
      data_choice("eval-data", "eval: or eval/ inside the data, else none; as --data",
                  "evaluation data", OFSDP_FIELD(run.eval_data)),
      interval("eval-interval", "how often to evaluate; also at the end",
               OFSDP_FIELD(run.eval_interval)),
  };
}

std::vector<OptionEntry> checkpoint_entries() {
  using namespace entries;
  return {
      path("checkpoint-dir", "none, FOLDER", "where checkpoints go", OFSDP_FIELD(checkpoint.dir)),
      interval("checkpoint-interval", "how often to save", OFSDP_FIELD(checkpoint.interval)),
      integer("keep-checkpoints", "2", "checkpoints kept", 1, OFSDP_FIELD(checkpoint.keep)),
      choice("keep-best", kBestBy, "also keep the checkpoint of the best evaluation",
             OFSDP_FIELD(checkpoint.keep_best)),
      choice("checkpoint-type", kCheckpointTypes, "what a checkpoint holds",
             OFSDP_FIELD(checkpoint.type)),
      toggle("checkpoint-sync", "off, on", "training waits for the save",
             OFSDP_FIELD(checkpoint.sync)),
      toggle("save-on-signal", "on, off", "SIGTERM and Ctrl-C save and end in order",
             OFSDP_FIELD(checkpoint.save_on_signal)),
      path("resume", "none, latest, FOLDER, FILE.onnx",
           "go on from a checkpoint, or start from a trained file's weights",
           OFSDP_FIELD(checkpoint.resume)),
  };
}

std::vector<OptionEntry> plugin_entries() {
  using namespace entries;
  std::vector<OptionEntry> table = {
      repeated("none", "plugin", "none; FILE.so, repeated",
               "operators and optimizers from a shared library", OFSDP_FIELD(plugins)),
      toggle("plugin-override", "off, on", "a plug-in may replace kernels that are built in",
             OFSDP_FIELD(plugin_override)),
      path("make-plugin", "none, FOLDER",
           "plan: write a plug-in to begin with, for the operators that the model lacks",
           OFSDP_FIELD(make_plugin)),
  };
  table[0].is_path = true;
  return table;
}

}  // namespace

std::vector<OptionEntry> run_entries() {
  using namespace entries;
  std::vector<OptionEntry> table = step_entries();
  for (OptionEntry& entry : checkpoint_entries()) table.push_back(std::move(entry));
  for (OptionEntry& entry : plugin_entries()) table.push_back(std::move(entry));
  table.push_back(path("output", "none, FILE.onnx", "the trained file, written at the end",
                       OFSDP_FIELD(files.output)));
  table.push_back(
      path("metrics", "none, FILE", "one JSON object a line", OFSDP_FIELD(files.metrics)));
  table.push_back(path("trace", "none, FILE", "a Chrome/Perfetto trace", OFSDP_FIELD(files.trace)));
  table.push_back(integer("log-interval", "10", "steps between lines of the log", 1,
                          OFSDP_FIELD(files.log_interval)));
  return table;
}

}  // namespace ofsdp::cli

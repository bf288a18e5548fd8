// Options about the loss and a teacher.
#include <algorithm>

#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

// Options about reading the model: which tensors are trained, whether the file says how, and
// layouts that the shapes leave open.

namespace {

// NAME=AXIS. Names in the file may contain '='.
Verdict add_batch_axis(BatchAxes& axes, const std::string& text) {
  const size_t equals = text.rfind('=');
  const bool named = equals != std::string::npos && equals > 0;
  const auto axis = named ? parse_integer(text.substr(equals + 1)) : std::nullopt;
  if (!axis) return fine_or(false, "NAME=AXIS, an input or output and a whole number");
  const auto [found, fresh] = axes.try_emplace(text.substr(0, equals), *axis);
  return fine_or(fresh || found->second == *axis, "one axis for each name");
}

OptionEntry batch_axis() {
  OptionEntry entry{.name = "batch-axis",
                    .values = "by the file's symbols, else 0; NAME=AXIS, repeated",
                    .help = "axis of the samples in an input or output; columns have them first",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    return add_batch_axis(o.batch_axes, text);
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> all;
    for (const auto& [name, axis] : o.batch_axes) all.push_back(format_text("{}={}", name, axis));
    return yaml_list(all);
  };
  entry.clear = [](Options& o) { o.batch_axes.clear(); };
  return entry;
}

}  // namespace

std::vector<OptionEntry> trained_entries() {
  using namespace entries;
  return {
      repeated("", {"freeze", "NAME or glob, repeated", "initializers that stay as they are"},
               OFSDP_FIELD(freeze)),
      repeated("", {"train", "NAME or glob, repeated", "the only initializers that are trained"},
               OFSDP_FIELD(train)),
      toggle({"sync-batch-norm", "off, on",
              "BatchNormalization takes its statistics from the rows of all ranks"},
             OFSDP_FIELD(sync_batch_norm)),
      batch_axis(),
      choice("nhwc-weights",
             "order of the weights of NhwcConv; auto: by a node that fits one alone, else last",
             OFSDP_FIELD(nhwc_weights)),
      choice("qat-scales", "scales of quantized values stay, or are trained (LSQ)",
             OFSDP_FIELD(qat_scales)),
      toggle(
          {"training-info", "on, off",
           "follow the training_info of the model, where it has one: its loss and its optimizer"},
          OFSDP_FIELD(training_info)),
      toggle({"initialize", "off, on",
              "start from what the initialization graphs of the training_info give"},
             OFSDP_FIELD(initialize)),
  };
}

// Options that change the model before training.

std::vector<OptionEntry> edit_entries() {
  using namespace entries;
  constexpr Range kBelowOne = {"a number of at least 0 and below 1",
                               [](double x) { return x >= 0 && x < 1; }};
  return {
      repeated("",
               {"lora", "all, NAME or glob; repeated",
                "weights that get an adapter; all else is frozen but for --train"},
               OFSDP_FIELD(edit.lora)),
      integer({"lora-rank", "8", "rows of an adapter's A"}, 1, OFSDP_FIELD(edit.lora_rank)),
      number({"lora-alpha", "16", "an adapter adds alpha/rank * B A to its weight"}, kAboveZero,
             OFSDP_FIELD(edit.lora_alpha)),
      number({"lora-dropout", "0", "of what an adapter multiplies with A"}, kBelowOne,
             OFSDP_FIELD(edit.lora_dropout)),
      path(
          {"lora-from", "none, FILE.safetensors or FILE.onnx_adapter", "the adapter to start from"},
          OFSDP_FIELD(edit.lora_from)),
      trusted(path({"adapter", "none, FILE.safetensors or FILE.onnx_adapter",
                    "the trained adapter, written at the end"},
                   OFSDP_FIELD(edit.adapter))),
      integer_or("none", {"replace-head", "none, N", "the last product gets N new outputs"}, 1,
                 OFSDP_FIELD(edit.replace_head)),
      repeated("",
               {"untie", "auto, NAME or glob; repeated",
                "every reader of an initializer gets its own copy; auto: those that were merged"},
               OFSDP_FIELD(edit.untie)),
  };
}

namespace {

constexpr std::string_view kOutputPrefix = "output:";
constexpr std::string_view kContrastivePrefix = "contrastive:";

// A:B or A:B:TEMPERATURE.
Verdict set_contrastive(LossOptions& loss, const std::string& text) {
  constexpr const char* kExpected = "contrastive:A:B or contrastive:A:B:TEMPERATURE, above 0";
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  std::optional<double> temperature = LossOptions().temperature;
  if (parts.size() == 3) temperature = parse_number(parts[2]);
  const bool fine = (parts.size() == 2 || parts.size() == 3) && !parts[0].empty() &&
                    !parts[1].empty() && temperature && *temperature > 0;
  if (!fine) return fine_or(false, kExpected);
  loss.kind = LossKind::kContrastive;
  loss.output = parts[0];
  loss.other = parts[1];
  loss.temperature = *temperature;
  return fine_or(true, kExpected);
}

std::string contrastive_text(const LossOptions& loss) {
  return format_text("{}{}:{}:{}", kContrastivePrefix, loss.output, loss.other,
                     show_number(loss.temperature));
}

constexpr size_t kMaxNamed = 200;  // so that the names of all losses fit into a metrics row

bool is_named(const std::string& text) {
  return text.find(':') != std::string::npos && !text.starts_with(kOutputPrefix) &&
         !text.starts_with(kPluginPrefix) && !text.starts_with(kContrastivePrefix);
}

// KIND:PREDICTION:LABELS[*WEIGHT]. Names of outputs may contain colons, names of columns may not.
Verdict read_named(const std::string& text, NamedLoss& made) {
  made.said = text;
  const bool printable = std::ranges::all_of(text, [](unsigned char c) { return c >= ' '; });
  if (text.size() > kMaxNamed || !printable) {
    return fine_or(false, format_text("at most {} printable bytes", kMaxNamed));
  }
  std::string names = text;
  if (const size_t star = text.rfind('*'); star != std::string::npos) {
    const auto weight = parse_number(text.substr(star + 1));
    if (!weight) return fine_or(false, "KIND:PREDICTION:LABELS*WEIGHT with a number");
    made.weight = *weight;
    names.resize(star);
  }
  const size_t first = names.find(':'), last = names.rfind(':');
  std::vector<std::string> kinds = names_of<LossKind>();
  std::erase(kinds, name_of(LossKind::kAuto));
  std::erase(kinds, name_of(LossKind::kContrastive));
  const Verdict verdict = set_choice(names.substr(0, first), made.kind, kinds);
  if (!verdict.fine) {
    return {false, "KIND:PREDICTION:LABELS with a kind of " + joined(kinds, ", "), verdict.hint};
  }
  made.labels = names.substr(last + 1);
  if (first == last || last == first + 1 || made.labels.empty()) {
    return fine_or(false, "KIND:PREDICTION:LABELS");
  }
  made.prediction = names.substr(first + 1, last - first - 1);
  return {};
}

Verdict add_named(LossOptions& loss, const std::string& text) {
  NamedLoss made;
  Verdict verdict = read_named(text, made);
  if (!verdict.fine) return verdict;
  if (loss.named.size() == kMaxLossTerms / 2) {
    return fine_or(false, format_text("at most {} losses", kMaxLossTerms / 2));
  }
  if (loss.named.empty()) {
    loss.kind = made.kind;
    loss.prediction = made.prediction;
    loss.labels = made.labels;
  }
  loss.named.push_back(std::move(made));
  return {};
}

OptionEntry loss() {
  OptionEntry entry{.name = "loss",
                    .values =
                        "auto, cross_entropy, nll, mse, bce_with_logits, output:NAME, plugin:NAME, "
                        "contrastive:A:B[:TEMPERATURE], KIND:PREDICTION:LABELS[*WEIGHT]; repeated",
                    .help = "auto: the graph's only scalar float output; the sum of several",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    const bool alone = o.loss.named.empty();
    if (is_named(text) ? alone && o.loss.kind != LossKind::kAuto : !alone) {
      return fine_or(false, "each of several losses as KIND:PREDICTION:LABELS[*WEIGHT]");
    }
    if (is_named(text)) return add_named(o.loss, text);
    o.loss.output.clear();
    if (text.starts_with(kOutputPrefix)) {
      o.loss.kind = LossKind::kOutput;
      o.loss.output = text.substr(kOutputPrefix.size());
      return fine_or(!o.loss.output.empty(), "a name after output:");
    }
    if (text.starts_with(kPluginPrefix)) {
      o.loss.kind = LossKind::kOperator;
      o.loss.output = text.substr(kPluginPrefix.size());
      return fine_or(!o.loss.output.empty(), "an operator's domain.Name after plugin:");
    }
    if (text.starts_with(kContrastivePrefix)) {
      return set_contrastive(o.loss, text.substr(kContrastivePrefix.size()));
    }
    Verdict verdict = set_choice(text, o.loss.kind, names_of<LossKind>());
    if (!verdict.fine) verdict.expected += ", output:NAME, plugin:NAME or contrastive:A:B";
    return verdict;
  };
  entry.show = [](const Options& o) {
    if (!o.loss.named.empty()) {
      std::vector<std::string> all;
      for (const NamedLoss& one : o.loss.named) all.push_back(one.said);
      return yaml_list(all);
    }
    if (o.loss.kind == LossKind::kOutput) return yaml_quoted("output:" + o.loss.output);
    if (o.loss.kind == LossKind::kOperator) return yaml_quoted("plugin:" + o.loss.output);
    if (o.loss.kind == LossKind::kContrastive) return yaml_quoted(contrastive_text(o.loss));
    return std::string(name_of(o.loss.kind));
  };
  entry.clear = [](Options& o) {
    const LossOptions none;
    o.loss.kind = none.kind;
    o.loss.output.clear();
    if (!o.loss.named.empty()) o.loss.prediction = o.loss.labels = "";
    o.loss.named.clear();
  };
  return entry;
}

}  // namespace

std::vector<OptionEntry> loss_entries() {
  using namespace entries;
  return {
      loss(),
      choice("loss-mean", "over the global batch, or PyTorch's mean of the ranks' means",
             OFSDP_FIELD(loss.mean)),
      text("", {"prediction", "the only candidate; NAME", "graph output the loss compares"},
           OFSDP_FIELD(loss.prediction)),
      text("", {"labels", "the only candidate; NAME", "data column the loss compares"},
           OFSDP_FIELD(loss.labels)),
      integer({"ignore-index", "-100", "label left out of the loss and of its mean"}, INT64_MIN,
              OFSDP_FIELD(loss.ignore_index)),
      number({"label-smoothing", "0", "cross_entropy: share spread over all classes"}, kZeroToOne,
             OFSDP_FIELD(loss.label_smoothing)),
      path({"teacher", "none, FILE.onnx", "a model whose outputs the trained one follows too"},
           OFSDP_FIELD(teacher.path)),
      number({"distill-weight", "0.5", "share of the divergence from the teacher in the loss"},
             kZeroToOne, OFSDP_FIELD(teacher.weight)),
      number({"distill-temperature", "2", "divides the logits of both"}, kAboveZero,
             OFSDP_FIELD(teacher.temperature)),
  };
}

}  // namespace ofsdp::cli

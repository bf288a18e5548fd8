// Options about the loss and a teacher.
#include <algorithm>
#include <cmath>

#include "importer/passes/sample_order.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

// Options about reading the model: which tensors are trained, whether the file says how, and
// layouts that the shapes leave open.

namespace {

// NAME=AXIS. Names in the file may contain '='.
Verdict add_batch_axis(BatchAxes& axes, const std::string& text) {
  const size_t equals = text.rfind('=');
  const bool named = equals != std::string::npos && equals > 0;
  const bool none = named && text.substr(equals + 1) == "none";
  const auto axis = none    ? std::optional(importer::kNoBatchAxis)
                    : named ? parse_integer(text.substr(equals + 1))
                            : std::nullopt;
  if (!axis) return fine_or(false, "NAME=AXIS, an input or output and a whole number or none");
  const auto [found, fresh] = axes.try_emplace(text.substr(0, equals), *axis);
  return fine_or(fresh || found->second == *axis, "one axis for each name");
}

OptionEntry batch_axis() {
  OptionEntry entry{.name = "batch-axis",
                    .values = "by the file's symbols, else 0; NAME=AXIS, NAME=none, repeated",
                    .help = "axis of the samples in an input or output; columns have them first",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    return add_batch_axis(o.batch_axes, text);
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> all;
    for (const auto& [name, axis] : o.batch_axes) {
      all.push_back(format_text("{}={}", name, importer::batch_axis_text(axis)));
    }
    return yaml_list(all);
  };
  entry.clear = [](Options& o) { o.batch_axes.clear(); };
  return entry;
}

// NAME=4x16: a shape.
Verdict add_sample_shape(std::map<std::string, Shape>& shapes, const std::string& text) {
  const size_t equals = text.rfind('=');
  std::vector<int64_t> axes;
  bool good = equals != std::string::npos && equals > 0;
  for (size_t at = equals + 1; good;) {
    const size_t end = std::min(text.find('x', at), text.size());
    const auto size = parse_integer(text.substr(at, end - at), 1);
    good = size.has_value();
    if (good) axes.push_back(*size);
    if (end == text.size()) break;
    at = end + 1;
  }
  if (!good) return fine_or(false, "NAME=AxB, an input and the axes of one sample");
  const Shape shape(axes);
  const auto [found, fresh] = shapes.try_emplace(text.substr(0, equals), shape);
  return fine_or(fresh || found->second == shape, "one shape for each input");
}

OptionEntry sample_shape() {
  OptionEntry entry{.name = "sample-shape",
                    .values = "the file's; NAME=AxB, repeated",
                    .help = "axes of one sample in an input with open axes, for --data synthetic",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) {
    return add_sample_shape(o.sample_shapes, text);
  };
  entry.show = [](const Options& o) {
    std::vector<std::string> all;
    for (const auto& [name, shape] : o.sample_shapes) {
      std::vector<std::string> axes;
      for (const int64_t size : shape.axes()) axes.push_back(std::to_string(size));
      all.push_back(format_text("{}={}", name, joined(axes, "x")));
    }
    return yaml_list(all);
  };
  entry.clear = [](Options& o) { o.sample_shapes.clear(); };
  return entry;
}

// NAME=VALUE. Names in the file may contain '='.
Verdict add_input(std::map<std::string, std::string>& inputs, const std::string& text) {
  const size_t equals = text.rfind('=');
  const bool named = equals != std::string::npos && equals > 0;
  const std::string value = named ? text.substr(equals + 1) : "";
  const bool known = value == "zeros" || value == "ones" || value.ends_with(".npy") ||
                     parse_number(value).has_value();
  if (!named || !known) {
    return fine_or(false, "NAME=VALUE, an input and a number, zeros, ones or a .npy file");
  }
  const auto [found, fresh] = inputs.try_emplace(text.substr(0, equals), value);
  return fine_or(fresh || found->second == value, "one value for each input");
}

OptionEntry input() {
  OptionEntry entry{.name = "input",
                    .values = "none; NAME=VALUE, a number, zeros, ones or a .npy; repeated",
                    .help = "a graph input that is the same in every batch, and no column",
                    .kind = OptionEntry::Kind::kRepeated};
  entry.set = [](Options& o, const std::string& text) { return add_input(o.inputs, text); };
  entry.show = [](const Options& o) {
    std::vector<std::string> all;
    for (const auto& [name, value] : o.inputs) all.push_back(format_text("{}={}", name, value));
    return yaml_list(all);
  };
  entry.clear = [](Options& o) { o.inputs.clear(); };
  return entry;
}

}  // namespace

std::vector<OptionEntry> trained_entries() {
  using namespace entries;
  return {
      in_training_info(
          repeated("", {"freeze", "NAME or glob, repeated", "parameters that stay as they are"},
                   OFSDP_FIELD(freeze))),
      in_training_info(repeated(
          "", {"train", "NAME or glob, repeated", "the only initializers that are trained"},
          OFSDP_FIELD(train))),
      toggle({"sync-batch-norm", "off, on",
              "BatchNormalization takes its statistics from the rows of all ranks"},
             OFSDP_FIELD(sync_batch_norm)),
      batch_axis(),
      toggle({"free-batch", "off, on",
              "take a batch axis that the file fixes for any; samples together must give what each "
              "gives alone"},
             OFSDP_FIELD(free_batch)),
      sample_shape(),
      trusted(input()),
      choice("nhwc-weights",
             "order of the weights of NhwcConv; auto: by a node that fits one alone, else last",
             OFSDP_FIELD(nhwc_weights)),
      choice("qat-scales", "scales of quantized values stay, or are trained (LSQ)",
             OFSDP_FIELD(qat_scales)),
      toggle(
          {"training-info", "on, off",
           "follow the training_info of the model, where it has one: its loss and its optimizer"},
          OFSDP_FIELD(training_info)),
      toggle({"initialize", "off, on", "start from the initialization graphs of the training_info"},
             OFSDP_FIELD(initialize)),
  };
}

// Options that change the model before training.

namespace {

std::optional<AddedHead> parse_added_head(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto outputs = parse_integer(text.substr(0, colon), 1);
  const bool named = colon < text.size();
  if (!outputs || (named && colon + 1 == text.size())) return std::nullopt;
  return AddedHead{*outputs, named ? text.substr(colon + 1) : "head"};
}

}  // namespace

std::vector<OptionEntry> edit_entries() {
  using namespace entries;
  constexpr Range kBelowOne = {"a number of at least 0 and below 1",
                               [](double x) { return x >= 0 && x < 1; }};
  const auto adapts = [](const Options& o) { return !o.edit.adapters.patterns.empty(); };
  return {
      repeated("",
               {"lora", "all, NAME or glob; repeated",
                "weights that get an adapter; others are frozen but for --train"},
               OFSDP_FIELD(edit.adapters.patterns)),
      unless_idle(
          integer({"lora-rank", "8", "rows of an adapter's A"}, 1, OFSDP_FIELD(edit.adapters.rank)),
          adapts, "--lora none"),
      unless_idle(number_or("auto",
                            {"lora-alpha", "auto (that of --lora-from, else 16), X",
                             "an adapter adds alpha/rank * B A to its weight"},
                            kAboveZero, OFSDP_FIELD(edit.adapters.alpha)),
                  adapts, "--lora none"),
      unless_idle(number({"lora-dropout", "0", "of the rows that an adapter multiplies with A"},
                         kBelowOne, OFSDP_FIELD(edit.adapters.dropout)),
                  adapts, "--lora none"),
      path({"lora-from", "none, FILE.safetensors, FILE.onnx_adapter, FOLDER",
            "the adapter to start from"},
           OFSDP_FIELD(edit.adapters.from)),
      trusted(path({"adapter", "none, FILE.safetensors, FILE.onnx_adapter, FOLDER (as PEFT's)",
                    "the trained adapter, written at the end"},
                   OFSDP_FIELD(edit.adapter))),
      integer_or("none", {"replace-head", "none, N", "the last product gets N new outputs"}, 1,
                 OFSDP_FIELD(edit.head)),
      parsed_or("none",
                {"add-head", "none, N or N:NAME",
                 "a new Linear of N outputs on the prediction, which it becomes"},
                "N or N:NAME, a number above 0 and a name", OFSDP_FIELD(edit.added),
                parse_added_head,
                [](const AddedHead& head) {
                  return yaml_quoted(format_text("{}:{}", head.outputs, head.name));
                }),
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
Verdict set_contrastive(LossSpec& loss, const std::string& text) {
  constexpr const char* kExpected = "contrastive:A:B or contrastive:A:B:TEMPERATURE, above 0";
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  std::optional<double> temperature = LossSpec().temperature;
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

std::string contrastive_text(const LossSpec& loss) {
  return format_text("{}{}:{}:{}", kContrastivePrefix, loss.output, loss.other,
                     show_number(loss.temperature));
}

constexpr std::string_view kBlankPrefix = "ctc[";

// Reads a kind, or ctc[BLANK].
Verdict set_kind(LossSpec& loss, const std::string& text, const std::vector<std::string>& kinds) {
  loss.blank = LossSpec().blank;
  if (!text.starts_with(kBlankPrefix) || !text.ends_with(']')) {
    return set_choice(text, loss.kind, kinds);
  }
  const size_t digits = text.size() - kBlankPrefix.size() - 1;
  const auto blank = parse_integer(text.substr(kBlankPrefix.size(), digits), 0);
  loss.kind = LossKind::kCtc;
  loss.blank = blank.value_or(0);
  return fine_or(blank.has_value(), "ctc[CLASS], the class without a label");
}

constexpr size_t kMaxNamed = 200;  // so that all losses' names fit into a metrics row

bool is_named(const std::string& text) {
  return text.find(':') != std::string::npos && !text.starts_with(kOutputPrefix) &&
         !text.starts_with(kPluginPrefix) && !text.starts_with(kContrastivePrefix);
}

// Parses KIND:PREDICTION:LABELS[*WEIGHT]. Output names may contain colons, column names may not.
Verdict read_named(const std::string& text, LossSpec& made) {
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
  const Verdict verdict = set_kind(made, names.substr(0, first), kinds);
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

// Returns whether the first loss names its prediction, so that others may follow it.
bool first_is_named(const Options& o) { return !o.losses[0].said.empty(); }

Verdict add_named(std::vector<LossSpec>& losses, const std::string& text) {
  const bool first = losses[0].said.empty();
  LossSpec made = first ? losses[0] : LossSpec{};
  Verdict verdict = read_named(text, made);
  if (!verdict.fine) return verdict;
  if (losses.size() == kMaxLossTerms / 2) {
    return fine_or(false, format_text("at most {} losses", kMaxLossTerms / 2));
  }
  if (first) losses.clear();
  losses.push_back(std::move(made));
  return {};
}

Verdict set_loss(Options& o, const std::string& text) {
  LossSpec& loss = o.losses[0];
  if (is_named(text) ? !first_is_named(o) && loss.kind != LossKind::kAuto : first_is_named(o)) {
    const bool alone = loss.kind == LossKind::kContrastive || text.starts_with(kContrastivePrefix);
    return fine_or(false, alone ? "contrastive as the only loss, which no other joins"
                                : "each of several losses as KIND:PREDICTION:LABELS[*WEIGHT]");
  }
  if (is_named(text)) return add_named(o.losses, text);
  loss.output.clear();
  if (text.starts_with(kOutputPrefix)) {
    loss.kind = LossKind::kOutput;
    loss.output = text.substr(kOutputPrefix.size());
    return fine_or(!loss.output.empty(), "a name after output:");
  }
  if (text.starts_with(kPluginPrefix)) {
    loss.kind = LossKind::kOperator;
    loss.output = text.substr(kPluginPrefix.size());
    return fine_or(!loss.output.empty(), "an operator's domain.Name after plugin:");
  }
  if (text.starts_with(kContrastivePrefix)) {
    return set_contrastive(loss, text.substr(kContrastivePrefix.size()));
  }
  Verdict verdict = set_kind(loss, text, names_of<LossKind>());
  if (!verdict.fine) verdict.expected += ", output:NAME, plugin:NAME or contrastive:A:B";
  return verdict;
}

std::string show_loss(const Options& o) {
  const LossSpec& loss = o.losses[0];
  if (first_is_named(o)) {
    std::vector<std::string> all;
    for (const LossSpec& one : o.losses) all.push_back(one.said);
    return yaml_list(all);
  }
  if (loss.kind == LossKind::kOutput) return yaml_quoted("output:" + loss.output);
  if (loss.kind == LossKind::kOperator) return yaml_quoted("plugin:" + loss.output);
  if (loss.kind == LossKind::kContrastive) return yaml_quoted(contrastive_text(loss));
  if (loss.blank != 0) return yaml_quoted(format_text("{}{}]", kBlankPrefix, loss.blank));
  return std::string(name_of(loss.kind));
}

// An entry for losses that take the setting.
OptionEntry for_losses(LossTakes setting, OptionEntry entry) {
  entry.no_effect = [setting](const Options& o) {
    const bool of_one = setting == kTakesPrediction || setting == kTakesLabels;
    const bool used = !(of_one && first_is_named(o)) &&
                      std::ranges::any_of(o.losses, [setting](const LossSpec& loss) {
                        return (loss_traits(loss.kind).takes & setting) != 0;
                      });
    if (used) return NoEffect();
    return NoEffect{"--loss " + (first_is_named(o) ? o.losses[0].said : show_loss(o))};
  };
  return entry;
}

OptionEntry loss() {
  OptionEntry entry{
      .name = "loss",
      .values = joined(names_of<LossKind>(), ", ") +
                ", ctc[BLANK], output:NAME, plugin:NAME, contrastive:A:B[:TEMPERATURE], "
                "KIND:PREDICTION:LABELS[*WEIGHT]; repeated",
      .help = "auto: the graph's only scalar float output; repeated: their sum",
      .kind = OptionEntry::Kind::kRepeated,
      .set = set_loss,
      .show = show_loss};
  entry.clear = [](Options& o) {
    LossSpec& loss = o.losses[0];
    if (first_is_named(o)) loss.prediction = loss.labels = "";
    loss.kind = LossSpec().kind;
    loss.weight = LossSpec().weight;
    loss.output.clear();
    loss.said.clear();
    o.losses.resize(1);
  };
  return entry;
}

std::string shown_numbers(const std::vector<float>& values) {
  std::vector<std::string> texts;
  for (const float value : values) texts.push_back(format_text("{}", value));
  return texts.empty() ? "none" : "[" + joined(texts, ", ") + "]";
}

// Returns the numbers of a list, all at least 0; none if one of its parts is something else.
std::optional<std::vector<float>> weights_in(const std::string& text) {
  std::vector<float> values;
  if (text == "none") return values;
  for (const std::string& part : split_list(text)) {
    const auto value = parse_number(part);
    if (!value || *value < 0 || std::isinf(static_cast<float>(*value))) return {};
    values.push_back(static_cast<float>(*value));
  }
  return values;
}

OptionEntry class_weights() {
  OptionEntry entry{.name = "class-weights",
                    .values = "none, W,W,..., FILE",
                    .help = "losses over classes: weight of each class, as PyTorch's `weight`"};
  entry.set = [](Options& o, const std::string& text) {
    const auto values = weights_in(text);
    o.losses[0].class_weights = values.value_or(std::vector<float>{});
    o.class_weights = values ? "" : text;
    const bool none = values && !values->empty() && std::ranges::max(*values) == 0;
    return fine_or(!none, "a weight above 0 among them");
  };
  entry.show = [](const Options& o) {
    return o.class_weights.empty() ? shown_numbers(o.losses[0].class_weights)
                                   : yaml_quoted(o.class_weights);
  };
  return entry;
}

OptionEntry positive_weights() {
  OptionEntry entry{.name = "pos-weight",
                    .values = "none, W or W,W,...",
                    .help = "bce_with_logits: weight of labels 1, one or one for each column"};
  entry.set = [](Options& o, const std::string& text) {
    const auto values = weights_in(text);
    o.losses[0].positive_weights = values.value_or(std::vector<float>{});
    return fine_or(values.has_value(), "numbers of at least 0, such as 1,4");
  };
  entry.show = [](const Options& o) { return shown_numbers(o.losses[0].positive_weights); };
  return entry;
}

}  // namespace

std::vector<OptionEntry> loss_entries() {
  using namespace entries;
  const auto taught = [](const Options& o) { return !o.teacher.path.empty(); };
  return {
      in_training_info(loss()),
      choice("loss-mean", "over the global batch, or PyTorch's mean of the ranks' means",
             OFSDP_FIELD(loss_mean)),
      for_losses(
          kTakesPrediction,
          text("", {"prediction", "the only candidate; NAME", "graph output the loss compares"},
               OFSDP_FIELD(losses[0].prediction))),
      for_losses(kTakesLabels,
                 text("", {"labels", "the only candidate; NAME", "data column the loss compares"},
                      OFSDP_FIELD(losses[0].labels))),
      in_training_info(
          for_losses(kTakesIgnoreIndex,
                     integer({"ignore-index", "-100", "label left out of the loss and of its mean"},
                             INT64_MIN, OFSDP_FIELD(losses[0].ignore_index)))),
      in_training_info(for_losses(
          kTakesSmoothing,
          number({"label-smoothing", "0", "cross_entropy: share spread over all classes"},
                 kZeroToOne, OFSDP_FIELD(losses[0].label_smoothing)))),
      in_training_info(for_losses(kTakesClassWeights, class_weights())),
      in_training_info(for_losses(kTakesPositiveWeights, positive_weights())),
      path({"teacher", "none, FILE.onnx", "a model whose outputs the trained one follows too"},
           OFSDP_FIELD(teacher.path)),
      unless_idle(
          number({"distill-weight", "0.5", "share of the divergence from the teacher in the loss"},
                 kZeroToOne, OFSDP_FIELD(teacher.weight)),
          taught, "--teacher none"),
      unless_idle(number({"distill-temperature", "2", "divides the logits of both"}, kAboveZero,
                         OFSDP_FIELD(teacher.temperature)),
                  taught, "--teacher none"),
  };
}

}  // namespace ofsdp::cli

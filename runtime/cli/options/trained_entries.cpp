// The options about how the model's file is read: what of it is trained, whether it says how, and
// layouts that its shapes leave open.
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

// NAME=AXIS. Names of the file may hold '='.
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

}  // namespace ofsdp::cli
